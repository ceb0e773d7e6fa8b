"""Coverage of JSON Schema: which schemas of a folder compile, and do masks allow what is valid and nothing else?

    python benchmarks/quality/structured.py DATA [--model smollm2-135m] [--lenient]

DATA is a folder with the samples `maskbench_sample.jsonl` (schemas, each with texts marked valid or not) and
`jsonschemabench_sample.jsonl` (schemas alone), or one such file. A line has `id`, `schema` and perhaps `tests`, a list
of `{"data": ..., "valid": ...}`. Each text is written as `json.dumps` writes it, cut into tokens, and followed token by
token with a mask before each: a token counts as allowed when its bit is set. No model runs; times are computing time.
Counts are of the samples, not of the whole benchmarks they were taken from.

`compiled` is the share of schemas that are taken. Of those: `right` says that every valid text was allowed and whole,
and every other one was not; `too strict` and `too loose` count the texts for which it was not so.
"""

from __future__ import annotations

import argparse
import json
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lenient", action="store_true", help="leave out keywords that cannot be enforced")
    options = parser.parse_args()
    tokenizer = load_tokenizer(find_files(EngineConfig(model=ModelConfig(model=options.model)), read_environment()))
    compiler = GrammarCompiler.of(
        tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=list(tokenizer.eos_token_ids)
    )
    paths = sorted(options.data.glob("*.jsonl")) if options.data.is_dir() else [options.data]
    for path in paths:
        tally = Tally()
        for text in path.read_text(encoding="utf-8").splitlines():
            examine(json.loads(text), compiler, tokenizer, options.lenient, tally)
        report(path.name, tally)


if __name__ == "__main__":
    main()
