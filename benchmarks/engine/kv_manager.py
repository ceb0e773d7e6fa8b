"""Host time and memory of the KV manager alone: `python benchmarks/engine/kv_manager.py`.

CPU time (not wall time), best of several runs, for one full KV group and for Gemma 3's five sliding and one full.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.request import Request, TokenPrompt
from paceline.engine.kv_manager import KVManager, SequenceKeys, SequenceKV

BLOCK_SIZE, NUM_BLOCKS, ROWS, CHUNK = 16, 1_000_000, 256, 512
MODELS: dict[str, tuple[int | None, ...]] = {"1 full": (None,), "5 sliding + 1 full": (*[512] * 5, None)}


def make_manager(windows: tuple[int | None, ...], *, prefix_caching: bool = True) -> KVManager:
    groups = tuple(
        KVGroupSpec(
            kind="full" if window is None else "sliding",
            layers=(index,),
            block_size=BLOCK_SIZE,
            bytes_per_block=1024,
            window=window,
        )
        for index, window in enumerate(windows)
    )
    layout = KVLayout(groups=groups, num_blocks=NUM_BLOCKS)
    return KVManager(layout, max_chunk_tokens=CHUNK, prefix_caching=prefix_caching)


def make_request(request_id: int, num_tokens: int, seed: int) -> Request:
    ids = np.random.default_rng(seed).integers(0, 30_000, num_tokens, dtype=np.int32)
    return Request(request_id=request_id, prompt=TokenPrompt(ids=ids))


def run_prompt(kv: KVManager, request: Request) -> tuple[SequenceKV, SequenceKeys]:
    keys = kv.keys_for(request)
    state = kv.reserve(kv.quote(request.request_id, keys, request.num_prompt, max_hit_tokens=request.num_prompt - 1))
    assert state is not None
    for end in [*range(CHUNK, request.num_prompt, CHUNK), request.num_prompt]:
        if end > state.num_computed:
            assert kv.grow(state, end) is not None
            kv.commit(state, keys, end)
    return state, keys


def microseconds(work: Callable[[], object], repeat: int = 20) -> float:
    def once() -> float:
        begin = time.process_time_ns()
        work()
        return (time.process_time_ns() - begin) / 1e3

    return min(once() for _ in range(repeat))


def decode_steps(kv: KVManager) -> tuple[float, float]:
    """Median ms of a decode step in which no row, and of one in which every row, begins or ends a block."""
    rows = [run_prompt(kv, make_request(index, 600, index)) for index in range(ROWS)]
    inside, edge = [], []
    for position in range(600, 1100):
        begin = time.process_time_ns()
        for state, _ in rows:
            kv.grow(state, position + 1)
        for state, keys in rows:
            keys.extend((7,))
            kv.commit(state, keys, position + 1)
        kv.settled()
        ms = (time.process_time_ns() - begin) / 1e6
        (edge if position % BLOCK_SIZE in (0, BLOCK_SIZE - 1) else inside).append(ms)
    return float(np.median(inside)), float(np.median(edge))


def main() -> None:
    print(f"{'make a manager for 1,000,000 blocks':58} {microseconds(lambda: make_manager((None,))):9.0f} us")
    for name, windows in MODELS.items():
        kv = make_manager(windows)
        print(f"{name}: block {BLOCK_SIZE}, {ROWS} rows")
        inside, edge = decode_steps(kv)
        print(f"{'  decode step: grow, extend keys, commit':58} {inside:9.3f} ms")
        print(f"{'  the same when every row begins or ends a block':58} {edge:9.3f} ms")
        warm = make_request(10_000, 1025, 1)
        kv.release(run_prompt(kv, warm)[0])
        keys = kv.keys_for(warm)
        cold = kv.keys_for(make_request(10_001, 1025, 2))
        print(f"{'  keys of a 1,024-token prompt':58} {microseconds(lambda k=kv, w=warm: k.keys_for(w)):9.0f} us")
        for label, which in (("found whole", keys), ("not found", cold)):
            took = microseconds(lambda k=kv, w=which: k.quote(10_002, w, 1025, max_hit_tokens=1024))
            print(f"{f'  quote of a 1,024-token prompt, {label}':58} {took:9.0f} us")
    for caching in (True, False):
        tracemalloc.start()
        kv = make_manager((None,), prefix_caching=caching)
        before = tracemalloc.get_traced_memory()[0]
        kv.release(run_prompt(kv, make_request(0, 16_000, 3))[0])
        kv.take_events()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        print(f"{f'host bytes per used block, prefix caching {caching}':58} {used / 1000:9.0f} bytes")


if __name__ == "__main__":
    main()
