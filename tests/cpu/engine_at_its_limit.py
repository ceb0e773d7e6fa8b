"""A process that keeps an engine at the limit of its configuration and says what memory that took, as JSON.

python -m tests.cpu.engine_at_its_limit FOLDER SECONDS NUMERICS
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline import LLM, SamplingParams

ROWS, CHUNK = 32, 256


def status_bytes(field: str) -> int:
    """VmRSS: resident bytes now. VmHWM: the most since the start, or since `reset_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(folder: str, numerics: str, steps: int, seconds: float) -> None:
    torch.set_num_threads(1)
    llm = LLM(
        folder,
        dtype="float32",
        numerics=numerics,
        num_threads=1,
        max_num_seqs=ROWS,
        max_num_batched_tokens=ROWS + CHUNK,
        prefill_chunk_tokens=CHUNK,
        prefix_cache_reserve=0.0,
    )
    with llm:
        predicted, held = llm.ledger.predicted_peak, status_bytes("VmRSS")
        parts = {entry.name: entry.predicted_bytes for entry in llm.ledger.entries}
        report: dict[str, Any] = {"predicted": predicted, "held": held, "parts": parts}
        reset_peak()  # loading had its own
        report |= run(llm, steps, seconds)
        report["peak"] = status_bytes("VmHWM")
    print(json.dumps(report))


def run(llm: LLM, steps: int, seconds: float) -> dict[str, Any]:
    """Every row taken; a full chunk of prompt in most steps; every row draws, with filters and log-probabilities."""
    rng = np.random.default_rng(0)
    longest, vocab_size = llm.max_model_len, llm.vocab_size
    most: dict[str, float] = {"rows": 0, "tokens": 0, "decode_rows": 0, "usage": 0.0}
    num_open = finished = 0
    end = time.monotonic() + seconds
    while llm.stats().step < steps or time.monotonic() < end:
        while num_open < 2 * ROWS:
            num_prompt = int(rng.integers(longest - 80, longest - 40))
            params = SamplingParams(
                max_tokens=None,
                ignore_eos=True,
                seed=int(rng.integers(1 << 30)),
                top_p=0.9,
                repetition_penalty=1.1,
                logprobs=20,
                prompt_logprobs=5 if rng.random() < 0.25 else None,
            )
            (request,) = llm.prepare(rng.integers(3, vocab_size, num_prompt), params)
            llm.client.submit(request)
            num_open += 1
        for output in llm.client.outputs():
            if output.finish is not None:
                assert output.error is None, output.error
                num_open -= 1
                finished += 1
        stats = llm.stats()
        for name in ("rows", "tokens", "decode_rows"):
            most[name] = max(most[name], stats.last_step.get(name, 0))
        most["usage"] = max(most["usage"], stats.kv.usage)
    return {
        "cpu_s": time.process_time(),
        "most": most,
        "finished": finished,
        "steps": llm.stats().step,
        "preemptions": llm.stats().num_preemptions,
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
