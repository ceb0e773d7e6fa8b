"""What grammars cost: time to compile one, time per mask, and how much slower the rows beside them get.

    python benchmarks/engine/grammar_masks.py                          masks and compilation, smollm2-135m's vocabulary
    python benchmarks/engine/grammar_masks.py --rows 8 --steps 60      also: steps of the whole engine with 0, 1, half
                                                                       and all rows under a grammar

The first part needs no model weights; its times are computing time of the thread, which leaves out whatever else the
machine does. In the second, each step is timed around `EngineCore.step`, in this process, with runs of the kinds of
batches interleaved; what is compared is the median step, by the clock and by the computing time of the whole process
(masks count there too when a core was free for them; it holds on a busy machine). "masks" is how long the step waited
for masks when its forward pass had ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.assemble.core import Core, build_core
from paceline.assemble.files import find_files
from paceline.config import EngineConfig, read_environment
from paceline.config.tree import ModelConfig
from paceline.contracts.request import Request, SamplingParams, TokenPrompt
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
    sampling = SamplingParams(temperature=0.0, max_tokens=num_steps + 400, ignore_eos=True)
    return [
        Request(
            request_id=next(ids),
            prompt=TokenPrompt(ids=prompt + row),
            sampling=sampling,
            grammar=grammar if row < num_grammars else None,
        )
        for row in range(num_rows)
    ]


def steps(built: Core, num_rows: int, num_grammars: int, num_steps: int, grammar: bytes, ids: Iterator[int]) -> Any:
    """Milliseconds of `num_steps` pure decode steps, of computing in them, and of waiting for masks."""
    core = built.core
    assert core._grammars is not None
    rows = core._grammars.rows
    waits: list[float] = []
    inputs = rows.inputs

    def timed(plan: Any) -> Any:
        begin = time.perf_counter()
        found = inputs(plan)
        waits.append((time.perf_counter() - begin) * 1e3)
        return found

    core.submit_all(made := requests(num_rows, num_grammars, num_steps, grammar, ids))
    while core.stats().num_waiting or core.stats().last_step.get("decode_rows", 0.0) < num_rows:
        core.step()
    rows.inputs = timed  # type: ignore[method-assign]
    times, computed = [], []
    for _ in range(num_steps):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        core.step()
        times.append((time.perf_counter() - begin) * 1e3)
        computed.append((time.process_time() - begin_cpu) * 1e3)
    rows.inputs = inputs  # type: ignore[method-assign]
    core.abort_all([request.request_id for request in made])
    while core.has_work:
        core.step()
    return times, computed, waits


def engine(model: str, num_rows: int, num_steps: int, rounds: int) -> None:
    built = build_core(EngineConfig(model=ModelConfig(model=model)))
    grammar = encode_spec(GrammarSpec(kind="json", value={"type": "array", "items": ORDER, "minItems": 1000}))
    kinds = sorted({0, 1, num_rows // 2, num_rows})
    ids = iter(range(1, 1 << 30))
    times: dict[int, list[float]] = {kind: [] for kind in kinds}
    computed: dict[int, list[float]] = {kind: [] for kind in kinds}
    waits: dict[int, list[float]] = {kind: [] for kind in kinds}
    for round_ in range(rounds):
        for kind in kinds if round_ % 2 == 0 else reversed(kinds):
            found, cpu, waited = steps(built, num_rows, kind, num_steps, grammar, ids)
            times[kind] += found
            computed[kind] += cpu
            waits[kind] += waited
    base, base_cpu = statistics.median(times[0]), statistics.median(computed[0])
    print(f"{num_rows} rows, {num_steps} steps, {rounds} rounds, interleaved")
    for kind in kinds:
        median, cpu_ms = statistics.median(times[kind]), statistics.median(computed[kind])
        print(
            f"{kind:3} under a grammar: step ms p50 {median:8.3f} ({100 * (median / base - 1):+5.1f} %)"
            f"   computing {cpu_ms:8.3f} ({100 * (cpu_ms / base_cpu - 1):+5.1f} %)"
            f"   masks ms {percentiles(waits[kind])}"
        )
    core = built.core
    core.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="0: no engine")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    files = find_files(EngineConfig(model=ModelConfig(model=options.model)), read_environment())
    masks(load_tokenizer(files), options.repeats)
    if options.rows:
        engine(options.model, options.rows, options.steps, options.rounds)


if __name__ == "__main__":
    main()
