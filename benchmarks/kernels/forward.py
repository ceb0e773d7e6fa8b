"""One forward pass of SmolLM2-135M's sizes (random weights): decode rows and prompt chunks, beside transformers.

    python benchmarks/kernels/forward.py --dtype float32 --rows 1 8 32 64 256 --prompts 128 512 2048

Prints the least and the median milliseconds of several runs, logits of one position per row included. Both sides run in
this process, in turns, so that a drift of the machine meets both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tests.cpu.harness import Harness, Row

from paceline.contracts.specs import LayerSpec, ModelSpec, RopeSpec
from paceline.runtime.forward_context import ForwardContext, forward_context
from paceline.runtime.layers import BuildContext
from paceline.runtime.models import build_model

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def smollm2_spec() -> ModelSpec:
    return ModelSpec(
        family="llama",
        name="smollm2-135m (random)",
        revision="",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        layers=(LayerSpec(rope=RopeSpec(theta=100_000.0)),) * 30,
        max_model_len=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )


class Ours:
    def __init__(self, dtype: torch.dtype, numerics: Any, num_blocks: int) -> None:
        context = BuildContext(dtype=dtype, numerics=numerics)
        self.model = build_model(smollm2_spec(), context)
        self.model.load_weights((s.name, torch.randn(s.shape) * 0.02 + (len(s.shape) == 1)) for s in self.model.slots())
        self.harness = Harness(self.model, num_blocks=num_blocks)
        self.harness.cache.storage.zero_()

    def rows(self, count: int, context: int, shared: int = 0) -> list[Row]:
        """Rows that hold `context` computed tokens; their content does not matter here."""
        first = self.harness.row()
        rows = []
        for _ in range(count):
            row = self.harness.row(share=first, num_tokens=shared) if shared and rows else self.harness.row()
            first = rows[0] if rows else row
            self.harness.metadata([(row, context - len(row.ids))])
            row.ids = [0] * context
            rows.append(row)
        return rows

    def step(self, work: list[tuple[Row, int]]) -> Callable[[], None]:
        total = sum(count for _, count in work)
        ids = torch.randint(0, 49152, (total,))
        positions = torch.cat([torch.arange(len(row.ids), len(row.ids) + count) for row, count in work])
        ends = torch.tensor([count for _, count in work]).cumsum(0) - 1

        def run() -> None:
            with torch.inference_mode(), forward_context(ForwardContext(attention=self.harness.metadata(work))):
                self.model.logits(self.model(ids, positions)[ends])

        return run


class Theirs:
    def __init__(self, dtype: torch.dtype) -> None:
        import transformers

        config = transformers.LlamaConfig(**SMOLLM2, rope_theta=100_000.0)
        config._attn_implementation = "sdpa"
        self.model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()

    def step(self, rows: int, context: int, count: int) -> Callable[[], None]:
        import transformers

        ids = torch.randint(0, 49152, (rows, count))
        cache = transformers.DynamicCache()
        with torch.inference_mode():
            if context:
                dtype = self.model.dtype
                for layer in range(30):
                    cache.update(
                        torch.zeros(rows, 3, context, 64, dtype=dtype),
                        torch.zeros(rows, 3, context, 64, dtype=dtype),
                        layer,
                    )

        def run() -> None:
            with torch.inference_mode():
                self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache.crop(-count) if context else cache.crop(0)

        return run


def measure(runs: dict[str, Callable[[], None]], seconds: float, clock: Callable[[], float]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(next(iter(times.values()))) < 3:
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append((clock() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--numerics", nargs="*", default=["fast"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 64, 256])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--shared", type=int, default=0, help="leading tokens that all decode rows share")
    parser.add_argument("--prompts", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--cpu-time", action="store_true", help="processor time instead of wall time (busy machines)")
    parser.add_argument("--profile", action="store_true", help="one profile per shape instead of times")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    clock = time.process_time if options.cpu_time else time.perf_counter
    most = max(options.rows or [0]) * (options.context // 16 + 2) + max(options.prompts or [0]) // 16 + 16
    sides = {numerics: Ours(dtype, numerics, most) for numerics in options.numerics}
    theirs = None if options.alone else Theirs(dtype)
    shapes = [(f"decode {n} rows x {options.context}", n, options.context, 1) for n in options.rows]
    shapes += [(f"prefill {n}", 1, 0, n) for n in options.prompts]
    for label, count, context, queries in shapes:
        runs: dict[str, Callable[[], None]] = {}
        held = []
        for name, side in sides.items():
            rows = side.rows(count, context, options.shared) if context else [side.harness.row()]
            held += [(side, row) for row in rows]
            runs[name] = side.step([(row, queries) for row in rows])
        if theirs is not None:
            runs["transformers"] = theirs.step(count, context, queries)
        if options.profile:
            for run in runs.values():
                run()
                with torch.profiler.profile() as profile:
                    run()
                print(
                    label,
                    profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=18, max_name_column_width=50),
                )
        else:
            times = measure(runs, options.seconds, clock)
            print(
                label,
                *(f"{n}: least {min(t):.2f} median {statistics.median(t):.2f} ms" for n, t in times.items()),
                sep=" | ",
            )
        for side, row in held:
            side.harness.release(row)


if __name__ == "__main__":
    main()
