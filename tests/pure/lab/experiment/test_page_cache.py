"""A cold start says what was cold."""

from __future__ import annotations

import sys

import pytest

from paceline.lab.experiment.page_cache import Dropped, drop, model_files, resident_share


def test_files_of_folders_and_links_count_once(tmp_path):
    (tmp_path / "a").write_bytes(b"1" * 5000)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"2")
    assert model_files([tmp_path, tmp_path / "a"]) == [tmp_path / "a", tmp_path / "sub" / "b"]
    assert model_files([tmp_path / "none"]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="mincore and fadvise as Linux has them")
def test_what_was_written_just_now_is_in_memory_and_what_was_dropped_is_told(tmp_path):
    import os

    file = tmp_path / "weights"
    with file.open("wb") as stream:
        stream.write(os.urandom(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())  # dirty pages cannot be dropped
    assert resident_share([file]) == 1.0
    found = drop([file])
    assert (found.num_files, found.num_bytes, found.resident_before) == (1, 1 << 20, 1.0)
    assert found.resident_after is not None
    assert 0 <= found.resident_after <= 1
    assert f"{found.resident_after:.0%} still in memory" in found.sentence
    assert "stayed warm" in found.sentence


def test_nothing_known_is_nothing_dropped():
    assert "nothing was dropped" in drop([]).sentence
    assert not drop([]).is_cold


def test_pages_that_stayed_are_no_cold_start():
    def found(after: float | None) -> Dropped:
        return Dropped(num_files=1, num_bytes=9, resident_before=1.0, resident_after=after)

    assert [found(after).is_cold for after in (0.0, 0.05, 0.5, 1.0, None)] == [True, True, False, False, True]
