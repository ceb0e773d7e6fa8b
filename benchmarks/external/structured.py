"""JSON Schema without a model: which schemas compile, do masks allow what is valid and nothing else, and how fast?

    python benchmarks/external/structured.py DATA [--model smollm2-135m] [--lenient]

Data: structured/*_sample.jsonl

DATA is a folder with samples as JSON lines: of MaskBench (schemas, each with texts marked valid or not) and of
JSONSchemaBench (schemas alone), or one such file. A line has `id`, `schema` and perhaps `tests`, a list of
`{"data": ..., "valid": ...}`. Each text is written as `json.dumps` writes it, cut into tokens, and followed token by
token with a mask before each: a token counts as allowed when its bit is set. No model runs; times are computing time.

`compiled` is the share of schemas that are taken. Of those: `right` says that every valid text was allowed and whole,
and every other one was not; `too strict` and `too loose` count the texts for which it was not so. Beside them stands
what llguidance says of itself on all of MaskBench. Counts here are of the samples, not of the whole benchmarks they
were taken from, and of another machine, vocabulary and version. The exit status is 1 when a text was judged wrongly in
strict mode.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from paceline.assemble.files import find_files
from paceline.config import EngineConfig, read_environment
from paceline.config.tree import ModelConfig
from paceline.errors import RequestError
from paceline.text import TextTokenizer, load_tokenizer
from paceline.text.grammar import GrammarCompiler, GrammarSpec, encode_spec
from paceline.text.grammar.compiler import LLGrammar

# maskbench/README.md of guidance-ai/jsonschemabench at 00c3d018: llguidance 0.6.7, Llama 3's vocabulary (128k), one
# thread of an AMD EPYC 7V13. "Compiled" are schemas without a compile error.
CLAIM = """llguidance's own, all 10,163 schemas of MaskBench (0.6.7, vocabulary of 128k, EPYC 7V13):
  compiled    7790/10163 (76.7 %)
  right       7765 of those; too strict 25 schemas, too loose none
  compile ms  p50 0.987  p99 14.180  max 170.635  mean 1.611
  mask    ms  p50 0.036  p99 0.460  max 20.007  mean 0.047"""


class Tally:
    """What was seen of one file."""

    def __init__(self) -> None:
        self.num_schemas = 0
        self.num_compiled = 0
        self.num_right = 0
        self.num_with_tests = 0
        self.num_texts = 0
        self.too_strict: list[str] = []
        self.too_loose: list[str] = []
        self.refused: Counter[str] = Counter()
        self.compile_ms: list[float] = []
        self.mask_ms: list[float] = []


def follow(grammar: LLGrammar, ids: list[int], words: np.ndarray, tally: Tally) -> bool:
    """Are all tokens allowed, and is the text whole behind them?"""
    for token in ids:
        begin = time.thread_time()
        grammar.fill_mask(words)
        tally.mask_ms.append((time.thread_time() - begin) * 1e3)
        allowed = bool(words[token // 32] >> np.uint32(token % 32) & np.uint32(1))
        if grammar.error or not allowed or not grammar.accept(token):
            return False
    return grammar.accepting


def examine(
    line: dict[str, Any], compiler: GrammarCompiler, tokenizer: TextTokenizer, lenient: bool, tally: Tally
) -> None:
    tally.num_schemas += 1
    begin = time.thread_time()
    try:
        grammar = compiler.compile(encode_spec(GrammarSpec(kind="json", value=line["schema"], lenient=lenient)))
    except RequestError as error:
        tally.refused[str(error.seen if error.seen is not None else error.message)[:70]] += 1
        return
    tally.compile_ms.append((time.thread_time() - begin) * 1e3)
    tally.num_compiled += 1
    words = np.empty(-(-tokenizer.vocab_size // 32), dtype=np.uint32)
    right = True
    for test in line.get("tests", ()):
        tally.num_texts += 1
        ids = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), add_special=False)
        if follow(grammar.clone(), ids, words, tally) != test["valid"]:
            right = False
            (tally.too_strict if test["valid"] else tally.too_loose).append(line["id"])
    if line.get("tests"):
        tally.num_with_tests += 1
        tally.num_right += right


def report(name: str, tally: Tally) -> None:
    def share(part: int, whole: int) -> str:
        return f"{part}/{whole} ({100 * part / whole:.1f} %)" if whole else "none"

    print(f"\n{name}")
    print(f"  compiled    {share(tally.num_compiled, tally.num_schemas)}")
    if tally.num_with_tests:
        print(f"  right       {share(tally.num_right, tally.num_with_tests)} of the schemas with texts")
        print(f"  texts       {tally.num_texts}; too strict {len(tally.too_strict)}, too loose {len(tally.too_loose)}")
        for kind, ids in (("too strict", tally.too_strict), ("too loose", tally.too_loose)):
            if ids:
                print(f"    {kind}: {', '.join(sorted(set(ids)))}")
    for what, values in (("compile", tally.compile_ms), ("mask", tally.mask_ms)):
        if values:
            p50, p99, most = np.percentile(values, [50, 99, 100])
            mean = np.mean(values)
            print(f"  {what:7} ms  p50 {p50:.3f}  p99 {p99:.3f}  max {most:.3f}  mean {mean:.3f}  n {len(values)}")
    for why, count in tally.refused.most_common():
        print(f"    refused {count:3}  {why}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lenient", action="store_true", help="leave out keywords that cannot be enforced")
    options = parser.parse_args()
    tokenizer = load_tokenizer(find_files(EngineConfig(model=ModelConfig(model=options.model)), read_environment()))
    compiler = GrammarCompiler.of(
        tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=list(tokenizer.eos_token_ids)
    )
    paths = sorted(options.data.glob("*_sample.jsonl")) if options.data.is_dir() else [options.data]
    wrong = 0
    for path in paths:
        tally = Tally()
        for text in path.read_text(encoding="utf-8").splitlines():
            examine(json.loads(text), compiler, tokenizer, options.lenient, tally)
        report(path.name, tally)
        wrong += len(tally.too_strict) + len(tally.too_loose)
    print(f"\n{CLAIM}")
    return 1 if wrong and not options.lenient else 0


if __name__ == "__main__":
    sys.exit(main())
