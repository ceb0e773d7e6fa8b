"""A process that keeps an engine at the limit of its configuration and says what memory that took, as JSON.

python -m tests.cpu.engine_at_its_limit FOLDER KERNELS SIZES STEPS SECONDS

KERNELS: `reference`, `fast`, or `onednn`, which is `fast` on a machine without the native library.
SIZES 1: before that, steps of ever more rows and positions, as a server meets them in time. What libraries keep for
each size, and what an allocator keeps of blocks that grow, then shows within seconds.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline import LLM, SamplingParams
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.dispatch import Numerics, choose

ROWS, CHUNK = 32, 256


def status_bytes(field: str) -> int:
    """VmRSS: resident bytes now. VmHWM: the most since the start, or since `reset_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class HeapNumbers(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


def free_heap_bytes() -> int | None:
    """What the heap holds and nobody uses. None: this C library does not say."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = HeapNumbers
    return int(mallinfo().fordblks)


def main(folder: str, kernels: str, sizes: bool, steps: int, seconds: float) -> None:
    torch.set_num_threads(1)
    numerics: Numerics = "reference" if kernels == "reference" else "fast"
    if kernels == "onednn":
        native.why_not = lambda: "left out"
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
        report["linear"] = choose("linear", "cpu", torch.float32, numerics).name
        reset_peak()  # loading had its own
        if sizes:
            meet_many_sizes(llm)
        report |= run(llm, llm.stats().step + steps, seconds)
        report["peak"] = status_bytes("VmHWM")
        report["free_heap"] = free_heap_bytes()
    print(json.dumps(report))


def meet_many_sizes(llm: LLM) -> None:
    """Every other number of positions in a step, then ever more rows that draw with filters and log-probabilities."""
    for num_prompt in range(1, llm.max_model_len, 2):
        drive(llm, 1, num_prompt, max_tokens=1)
    for num_rows in range(1, ROWS + 1, 3):
        drive(llm, num_rows, 8, max_tokens=2, top_p=0.9, repetition_penalty=1.1, logprobs=20)


def drive(llm: LLM, num: int, num_prompt: int, **sampling: Any) -> None:
    """That many requests together, to their end."""
    for index in range(num):
        prompt = np.random.default_rng(num_prompt + index).integers(3, llm.vocab_size, num_prompt)
        (request,) = llm.prepare(prompt, SamplingParams(ignore_eos=True, seed=index, **sampling))
        llm.client.submit(request)
    while num:
        ended = [output for output in llm.client.outputs() if output.finish is not None]
        assert all(output.error is None for output in ended), [output.error for output in ended]
        num -= len(ended)


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
                prompt_logprobs=20 if rng.random() < 0.25 else None,
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
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4]), float(sys.argv[5]))
