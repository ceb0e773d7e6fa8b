"""The memory plan holds: at the limit of the configuration, and when the limit is too high."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cpu.engine_at_its_limit import CHUNK, ROWS
from tests.fakes.model_folder import write_model

from paceline import LLM
from paceline.errors import CapacityError

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
VOCAB = 50_000
LENGTH = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Little to compute, but logits of 6 MiB a step and 32 MiB of KV: what is held twice can be seen."""
    return write_model(
        tmp_path_factory.mktemp("models") / "wide",
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=LENGTH,
    )


def run_at_limit(
    folder: Path, kernels: str, *, sizes: bool = False, steps: int = 0, seconds: float = 0
) -> dict[str, Any]:
    arguments = [str(folder), kernels, str(int(sizes)), str(steps), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cpu.engine_at_its_limit", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def check(report: dict[str, Any]) -> None:
    """Peak resident memory of the run against the ledger: everything but the margin."""
    parts = report["parts"]
    assert parts["kv"] > 30 * MIB
    assert parts["activations"] > 30 * MIB
    assert report["peak"] <= report["predicted"], report
    # and the run was one: blocks and logits were really there
    assert report["peak"] - report["held"] > parts["kv"] * report["most"]["usage"] + 4 * VOCAB * ROWS // 2
    assert report["most"]["tokens"] >= 0.9 * (ROWS + CHUNK)
    assert report["most"]["rows"] >= 0.9 * ROWS
    assert report["most"]["usage"] > 0.75
    assert report["finished"] >= ROWS // 4
    # large blocks went back when they were freed: what the heap keeps is small and does not grow with the logits
    if report["free_heap"] is not None:
        assert report["free_heap"] < 48 * MIB, report


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no resettable high-water mark here")
class TestAtTheLimit:
    @pytest.mark.parametrize("kernels", ["fast", pytest.param("onednn", marks=pytest.mark.long)])
    def test_sizes_that_come_and_grow_stay_below_the_predicted_peak(self, folder: Path, kernels: str) -> None:
        """Without rows padded to few sizes oneDNN's peak is a quarter above what is predicted; where freed blocks stay
        in the heap, that keeps 70 to 170 MiB of them (docs/decisions/0007)."""
        report = run_at_limit(folder, kernels, sizes=True, steps=70)
        assert kernels != "onednn" or not report["linear"].startswith("native")
        check(report)

    @pytest.mark.long
    def test_seventy_steps_in_reference_numerics_stay_below_the_predicted_peak(self, folder: Path) -> None:
        check(run_at_limit(folder, "reference", steps=70))

    @pytest.mark.long
    def test_ten_minutes_at_the_limit_stay_below_the_predicted_peak(self, folder: Path) -> None:
        check(run_at_limit(folder, "fast", seconds=600))


# --- lengths


def kv_bytes(num_tokens: int) -> int:
    """KV of so many tokens of the model above, and the null block."""
    return (num_tokens // 16 + 1) * 16 * 4 * 4 * 32 * 2 * 4


def test_the_models_own_length_is_lowered_with_a_note(folder: Path) -> None:
    with LLM(str(folder), dtype="float32", num_threads=1, kv_cache_memory=kv_bytes(160)) as llm:
        assert llm.max_model_len == 160
        assert llm.ledger.kv.predicted_bytes == kv_bytes(160)
        (note,) = (note for note in llm.notes if "max_model_len" in note)
        assert "lowered from 256 to 160" in note
        (output,) = llm.generate([5] * 150, max_tokens=None, ignore_eos=True)[0].outputs
        assert len(output.token_ids) == 10


def test_a_length_that_was_set_is_refused_when_it_does_not_fit(folder: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "kv_cache_memory": kv_bytes(160)}
    with pytest.raises(CapacityError, match="set max_model_len to 160 or less"):
        LLM(str(folder), max_model_len=161, **options)
    with LLM(str(folder), max_model_len=160, **options) as llm:
        assert llm.notes == () or "lowered" not in " ".join(llm.notes)


def test_a_cache_larger_than_the_machine_is_refused(folder: Path) -> None:
    with pytest.raises(CapacityError, match="kv_cache_memory does not fit"):
        LLM(str(folder), dtype="float32", num_threads=1, kv_cache_memory=1 << 50)
