"""What grammars cost: time to compile one, time per mask, and how much slower the rows beside them get.

    python benchmarks/engine/grammar_masks.py                          masks and compilation, smollm2-135m's vocabulary
    python benchmarks/engine/grammar_masks.py --rows 16 --steps 300    also: steps of the whole engine with 0, 1, half
                                                                       and all rows under a grammar

The first part needs no model weights; its times are computing time of the thread, which leaves out whatever else the
machine does. In the second there are two engines in this process, one without grammars, and they step in turn: each
step is compared with its neighbour in time, so a machine that changes from second to second does not matter. Told are
medians of a step, by the clock and by the computing time of the whole process (masks count there too when a core was
free for them), and the median ratio of neighbours with the 95 % interval of its rank. "masks" is how long the step
waited for masks when its forward pass had ended. The line with 0 says what two equal engines differ by: divide by it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.assemble.core import build_core
from paceline.assemble.files import find_files
from paceline.config import EngineConfig, read_environment
from paceline.config.tree import CacheConfig, ModelConfig, SchedulingConfig
from paceline.contracts.request import Request, SamplingParams, TokenPrompt
from paceline.engine.loop import EngineCore
from paceline.text import TextTokenizer, load_tokenizer
from paceline.text.grammar import GrammarCompiler, GrammarSpec, encode_spec

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": {"type": "string", "format": "email"}},
            "required": ["name", "email"],
            "additionalProperties": False,
        },
        "state": {"enum": ["new", "paid", "sent", "returned"]},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
                    "count": {"type": "integer"},
                },
                "required": ["sku", "count"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "customer", "state", "items"],
    "additionalProperties": False,
}
TEXT = {
    "id": 17,
    "customer": {"name": "Ann Lee", "email": "ann@example.com"},
    "state": "paid",
    "items": [{"sku": "AB-1234", "count": 2}, {"sku": "CD-0001", "count": 31}],
}
KV_BYTES = 600 << 20  # for each of two engines in one process
CASES: list[tuple[str, Any, Any, str]] = [
    ("json schema", "json", ORDER, json.dumps(TEXT, indent=2)),
    ("any json object", "json", {"type": "object"}, json.dumps(TEXT)),
    ("regex", "regex", r"(\w+ ){3,20}\w+\.", "the quick brown fox jumps over the lazy dog."),
    ("choice of 500", "choice", [f"option number {i}" for i in range(500)], "option number 417"),
    ("lark", "lark", 'start: e\ne: e "+" t | t\nt: /[0-9]+/ | "(" e ")"', "(12+34)+((5+6)+7)+890"),
]


def percentiles(values: list[float]) -> str:
    p50, p99, most = np.percentile(values, [50, 99, 100])
    return f"p50 {p50:7.3f}  p99 {p99:7.3f}  max {most:7.3f}"


def masks(tokenizer: TextTokenizer, repeats: int) -> None:
    eos = list(tokenizer.eos_token_ids)
    begin = time.thread_time()
    compiler = GrammarCompiler.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=eos)
    compiler.compile(encode_spec(GrammarSpec(kind="regex", value="a")))
    print(f"vocabulary of {tokenizer.vocab_size}: ready after {time.thread_time() - begin:.3f} s (once)")
    words = np.empty(-(-tokenizer.vocab_size // 32), dtype=np.uint32)
    for name, kind, value, text in CASES:
        data = encode_spec(GrammarSpec(kind=kind, value=value))
        compiled, times = [], []
        for _ in range(repeats):
            begin = time.thread_time()
            grammar = compiler.compile(data)
            compiled.append((time.thread_time() - begin) * 1e3)
            one = grammar.clone()
            for token in tokenizer.encode(text, add_special=False):
                begin = time.thread_time()
                one.fill_mask(words)
                times.append((time.thread_time() - begin) * 1e3)
                assert one.accept(token), f"{name}: {text!r} is not in the grammar"
            assert one.accepting, name
        print(f"{name:16}  compile ms {percentiles(compiled)}   mask ms {percentiles(times)}")


def requests(num_rows: int, num_grammars: int, num_steps: int, grammar: bytes, ids: Iterator[int]) -> list[Request]:
    prompt = np.arange(20, 52, dtype=np.int32)
    return [
        Request(
            request_id=next(ids),
            prompt=TokenPrompt(ids=prompt + row),
            sampling=SamplingParams(temperature=0.7, seed=row, max_tokens=num_steps + 400, ignore_eos=True),
            grammar=grammar if row < num_grammars else None,
        )
        for row in range(num_rows)
    ]


def steps(cores: tuple[EngineCore, EngineCore], num_rows: int, num_steps: int, made: tuple[list[Request], ...]) -> Any:
    """Milliseconds of `num_steps` pure decode steps of each engine, one in turn with the other: by the clock, of
    computing [num_steps, engines]; and of waiting for masks."""
    waits: list[float] = []
    assert cores[1]._grammars is not None
    rows = cores[1]._grammars.rows
    inputs = rows.inputs

    def timed(plan: Any) -> Any:
        begin = time.perf_counter()
        found = inputs(plan)
        waits.append((time.perf_counter() - begin) * 1e3)
        return found

    for core, asked in zip(cores, made, strict=True):
        core.submit_all(asked)
        while core.stats().num_waiting or core.stats().last_step.get("decode_rows", 0.0) < num_rows:
            core.step()
    rows.inputs = timed  # type: ignore[method-assign]
    times, computed = np.empty((num_steps, 2)), np.empty((num_steps, 2))
    for at in range(num_steps):
        for which in (0, 1) if at % 2 else (1, 0):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            cores[which].step()
            times[at, which] = (time.perf_counter() - begin) * 1e3
            computed[at, which] = (time.process_time() - begin_cpu) * 1e3
    rows.inputs = inputs  # type: ignore[method-assign]
    for core, asked in zip(cores, made, strict=True):
        core.abort_all([request.request_id for request in asked])
        while core.has_work:
            core.step()
    return times, computed, waits


def ratio(values: np.ndarray) -> str:
    """Median of [n, 2] in ms, and of the ratio of neighbours, with the 95 % interval of its rank."""
    each = np.sort(values[:, 1] / values[:, 0])
    half, middle = round(0.98 * len(each) ** 0.5), len(each) // 2
    low, high = each[max(0, middle - half)], each[min(len(each) - 1, middle + half)]
    return f"{np.median(values[:, 1]):7.3f} ({np.median(each):.3f} [{low:.3f}, {high:.3f}] of the other's)"


def engine(model: str, num_rows: int, num_steps: int) -> None:
    config = EngineConfig(
        model=ModelConfig(model=model),
        cache=CacheConfig(kv_cache_memory=KV_BYTES),
        scheduling=SchedulingConfig(max_num_seqs=num_rows),  # a busy machine would allow itself fewer
    )
    cores = build_core(config).core, build_core(config).core
    grammar = encode_spec(GrammarSpec(kind="json", value={"type": "array", "items": ORDER, "minItems": 1000}))
    ids = iter(range(1, 1 << 30))
    print(f"{num_rows} rows, {num_steps} steps of each engine, in turn")
    for kind in sorted({0, 1, num_rows // 2, num_rows}):
        made = tuple(requests(num_rows, count, num_steps, grammar, ids) for count in (0, kind))
        times, computed, waits = steps(cores, num_rows, num_steps, made)
        print(
            f"{kind:3} under a grammar: step ms {ratio(times)}   computing {ratio(computed)}"
            f"   masks ms {percentiles(waits)}",
            flush=True,
        )
    for core in cores:
        core.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="0: no engine")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    files = find_files(EngineConfig(model=ModelConfig(model=options.model)), read_environment())
    masks(load_tokenizer(files), options.repeats)
    if options.rows:
        engine(options.model, options.rows, options.steps)


if __name__ == "__main__":
    main()
