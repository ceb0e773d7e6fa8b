"""Downloads that break off, servers that lie, disks that are full."""

import errno
import hashlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.pure.hub.conftest import Site

from paceline.errors import CapacityError, ModelError
from paceline.hub import transfer
from paceline.hub.disk import check_space, one_at_a_time
from paceline.hub.transfer import client, download

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with client(timeout_s=5.0) as http:
        yield http


def get(site: Site, folder: Path, http: httpx.Client, **options: Any) -> Path:
    site.files.setdefault("/f.bin", CONTENT)
    pauses: list[float] = []
    options = {"sha256": SHA256, "sleep": pauses.append} | options
    return download(f"{site.url}/f.bin", folder / "f.bin", http=http, **options)


def test_a_file_arrives_whole_and_progress_ends_at_its_size(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = get(site, tmp_path, http, progress=lambda *report: told.append(report))
    assert path.read_bytes() == CONTENT
    downloads = [(done, total) for stage, done, total in told if stage == "downloading f.bin"]
    assert downloads[0] == (0, len(CONTENT))
    assert downloads[-1] == (len(CONTENT), len(CONTENT))
    assert list(tmp_path.iterdir()) == [path]


def test_a_lost_connection_goes_on_where_it_was(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    site.cut_after = [300_000, 1, 500_000]
    assert get(site, tmp_path, http).read_bytes() == CONTENT
    starts = [wanted for _, _, wanted in site.requests]
    assert starts == [None, "bytes=300000-", "bytes=300001-", "bytes=800001-"]


def test_the_next_run_goes_on_with_the_partial_file(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    site.cut_after = [100_000] * 5
    with pytest.raises(ModelError, match="cannot download") as caught:
        get(site, tmp_path, http)
    assert "goes on where it stopped" in caught.value.fix
    assert (tmp_path / "f.bin.part").stat().st_size == 500_000
    site.requests.clear()
    assert get(site, tmp_path, http).read_bytes() == CONTENT
    assert [wanted for _, _, wanted in site.requests] == ["bytes=500000-"]


def test_a_partial_file_that_is_already_whole_is_only_checked(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    (tmp_path / "f.bin.part").write_bytes(CONTENT)
    assert get(site, tmp_path, http).read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_file_is_dropped(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    (tmp_path / "f.bin.part").write_bytes(CONTENT + b"more")
    assert get(site, tmp_path, http).read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    site.ranges = False
    (tmp_path / "f.bin.part").write_bytes(b"x" * 100)
    assert get(site, tmp_path, http).read_bytes() == CONTENT


def test_a_stale_partial_file_is_thrown_away_once(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    (tmp_path / "f.bin.part").write_bytes(b"of another file")
    assert get(site, tmp_path, http).read_bytes() == CONTENT


def test_wrong_content_is_refused_and_removed(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    site.files["/f.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(ModelError, match="wrong content") as caught:
        get(site, tmp_path, http)
    assert caught.value.expected == f"sha256 {SHA256}"
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_is_asked_again_a_refusal_is_final(site: Site, tmp_path: Path, http: httpx.Client) -> None:
    site.statuses = [503, 429, 500]
    assert get(site, tmp_path, http).read_bytes() == CONTENT
    site.statuses = [403]
    with pytest.raises(ModelError, match=r"refuses f\.bin") as caught:
        download(f"{site.url}/f.bin", tmp_path / "other" / "f.bin", sha256=SHA256, http=http)
    assert caught.value.seen == "HTTP 403"


def test_pauses_between_attempts_grow(tmp_path: Path, http: httpx.Client) -> None:
    pauses: list[float] = []
    with pytest.raises(ModelError, match=r"from 127\.0\.0\.1") as caught:
        download(
            "http://user:secret@127.0.0.1:9/f.bin", tmp_path / "f.bin", sha256=SHA256, http=http, sleep=pauses.append
        )
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    assert "secret" not in str(caught.value)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_room_is_said_before_the_bytes_come(
    site: Site, tmp_path: Path, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, len(CONTENT) - 1))
    with pytest.raises(CapacityError, match="no room") as caught:
        get(site, tmp_path, http)
    assert "PACELINE_HOME" in caught.value.fix
    assert not (tmp_path / "f.bin.part").exists()
    check_space(tmp_path, len(CONTENT) - 1)


def test_a_disk_that_fills_up_is_a_capacity_error(
    site: Site, tmp_path: Path, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "check_space", full)
    with pytest.raises(CapacityError, match="no room"):
        get(site, tmp_path, http)


def test_one_pull_at_a_time_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "m.lock"
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        def told(stage: str, *_: int | None) -> None:
            order.append(stage)
            waiting.set()

        with one_at_a_time(lock, told):
            order.append("second")

    with one_at_a_time(lock):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["waiting for another pull", "first", "second"]
