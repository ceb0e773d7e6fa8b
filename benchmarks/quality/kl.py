"""What rounding costs: KL, surprise and first choices against float32, by position, over the whole vocabulary.

    python benchmarks/quality/kl.py --candidate kv_cache_dtype=int8 --candidate activation_dtype=int8
    python benchmarks/quality/kl.py book.txt --model gemma3-270m --candidate kv_cache_dtype=int8,activation_dtype=int8
    python benchmarks/quality/kl.py book.txt --model some-f32.gguf --candidate model=its-q4_k_m.gguf

The reference is the model in float32 with its weights as floats and a KV cache of float32. A candidate is the same with
other engine options, separated by commas, a compute type (`dtype=bfloat16`) among them; another `model` must have the
same vocabulary. All of them read the same tokens in step, a chunk at a time, each over a cache of its own: what a
chunk reads of itself comes from the cache too, so a prompt is judged as decoding is. Texts are read one after another
and cut into runs of `--tokens`; the default text is this repository's own pages, which is neither a book nor a
conversation. Give your own to judge a use.

KL(reference || candidate) is exact, in nats. `surprise` is the mean negative log-likelihood of the text's next token,
reference and candidate. `first` is the share of positions where both like the same token best.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tests.cpu.harness import Harness, make_layout

from paceline import hub
from paceline.assemble.files import find_files
from paceline.assemble.weights import find_weight_method
from paceline.config import EngineConfig, check_features, load_config, read_environment
from paceline.errors import ConfigError
from paceline.lab.quality.divergence import BUCKETS
from paceline.runtime.device import DTYPES, choose_dtype
from paceline.runtime.kv_cache import KV_DTYPES
from paceline.runtime.loader import open_weights
from paceline.runtime.worker import Worker
from paceline.text import load_tokenizer

PAGES = Path(__file__).resolve().parents[2] / "docs" / "concepts"
ROWS_AT_ONCE = 32  # positions whose distributions are compared at once: in float64 a vocabulary is large


@dataclass
class Tally:
    """What a candidate did, position by position."""

    kl: list[np.ndarray] = field(default_factory=list)
    surprise: list[np.ndarray] = field(default_factory=list)  # [2, positions]: reference, candidate
    first: list[np.ndarray] = field(default_factory=list)
    position: list[np.ndarray] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, reference: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor, start: int) -> None:
        """Logits [T, vocab] of positions start .. start + T, which predict `targets` [T]."""
        for rows in torch.arange(len(targets)).split(ROWS_AT_ONCE):
            p, q = (torch.log_softmax(side[rows].double(), -1) for side in (reference, candidate))
            self.kl.append((p.exp() * (p - q)).sum(-1).numpy())
            at = targets[rows, None]
            self.surprise.append(-torch.cat((p.gather(1, at), q.gather(1, at)), 1).T.numpy())
            self.first.append((p.argmax(-1) == q.argmax(-1)).numpy())
            self.position.append(rows.numpy() + start)

    def lines(self, name: str) -> Iterator[str]:
        kl, first, position = (np.concatenate(part) for part in (self.kl, self.first, self.position))
        surprise = np.concatenate(self.surprise, 1)
        for low, high in (*BUCKETS, (0, int(position.max()) + 1)):
            chosen = (position >= low) & (position < high)
            if not chosen.any():
                continue
            mean, p99, most = kl[chosen].mean(), np.percentile(kl[chosen], 99), kl[chosen].max()
            theirs, ours = surprise[:, chosen].mean(1)
            yield (
                f"{name:44} {f'{low}-{high}':>11} {chosen.sum():>7} {mean:>10.6f} {p99:>9.5f} {most:>8.4f} "
                f"{theirs:>8.4f} {ours:>8.4f} {100 * first[chosen].mean():>7.2f} %"
            )


class Side:
    """One model with a cache of its own."""

    def __init__(self, config: EngineConfig, num_tokens: int, chunk: int) -> None:
        files = find_files(config, read_environment())
        spec = hub.describe(files)
        dtype, _ = choose_dtype(config.model.dtype, "cpu")
        check_features(config, spec, device="cpu", dtype=dtype)
        method = find_weight_method(config, files, device="cpu", dtype=dtype)
        keep = None if method is None else method.takes
        weights = open_weights(files, spec, dtype=DTYPES[dtype], keep_blocks=keep)
        self.spec = spec
        self.worker = Worker.load(spec, weights, dtype=DTYPES[dtype], numerics=config.numerics, weight_method=method)
        self.kv_dtype = KV_DTYPES[config.cache.kv_dtype(dtype)]
        self.tokenizer = load_tokenizer(files)
        self.num_tokens, self.chunk = num_tokens, chunk

    def begin(self) -> None:
        """An empty cache and one row."""
        blocks = make_layout(self.spec).max_blocks(self.num_tokens, self.chunk) + 8
        self.harness = Harness(self.worker.model, num_blocks=blocks, kv_dtype=self.kv_dtype)
        self.row = self.harness.row()

    def step(self, ids: list[int]) -> torch.Tensor:
        """Logits [len(ids), vocab] of the next tokens of the row."""
        return self.harness.step([(self.row, ids)])[0]


def options_of(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    for name, equals, _ in pairs:
        if not equals:
            raise argparse.ArgumentTypeError(f"{name!r} is no option: name=value,name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


def runs(side: Side, paths: list[Path], num_tokens: int, most: int) -> list[list[int]]:
    """Token ids of at most `most` runs of num_tokens + 1; what is left at the end of the text counts if it is alone."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in paths)
    ids = side.tokenizer.encode(text, add_special=False)
    head = side.tokenizer.encode("")
    body = num_tokens + 1 - len(head)
    cut = [head + ids[begin : begin + body] for begin in range(0, len(ids), body)][:most]
    return [run for run in cut if len(run) == num_tokens + 1] or cut[:1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*", help="plain text; default: docs/concepts/*.md")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--candidate", action="append", type=options_of, default=[], metavar="NAME=VALUE,...")
    parser.add_argument("--tokens", type=int, default=8000, help="positions of a run, at most what the model takes")
    parser.add_argument("--runs", type=int, default=1, help="runs of the text, at most")
    parser.add_argument("--chunk", type=int, default=256, help="tokens read at once")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base = {"model": options.model, "dtype": "float32"}
    wanted = options.candidate or [{"kv_cache_dtype": "int8"}]
    sides = [
        Side(load_config(None, flags), options.tokens, options.chunk)
        for flags in ({**base, "quantization": "none"}, *({**base, **candidate} for candidate in wanted))
    ]
    reference, candidates = sides[0], sides[1:]
    names = [",".join(f"{name}={value}" for name, value in candidate.items()) for candidate in wanted]
    for name, side in zip(names, candidates, strict=True):
        if side.spec.vocab_size != reference.spec.vocab_size:
            raise ConfigError(
                "another vocabulary", seen=f"{name}: {side.spec.vocab_size}", fix="compare like with like"
            )
    num_tokens = min(options.tokens, *(side.spec.max_model_len for side in sides))
    texts = options.texts or sorted(PAGES.glob("*.md"))
    chosen = runs(reference, texts, num_tokens, options.runs)
    tallies = [Tally() for _ in candidates]
    spent = 0.0
    for run in chosen:
        for side in sides:
            side.begin()
        for start in range(0, len(run) - 1, options.chunk):
            ids = run[start : min(start + options.chunk, len(run) - 1)]
            targets = torch.tensor(run[start + 1 : start + 1 + len(ids)])
            begin = time.perf_counter()
            expected = reference.step(ids)
            spent += time.perf_counter() - begin
            for side, tally in zip(candidates, tallies, strict=True):
                begin = time.perf_counter()
                got = side.step(ids)
                tally.seconds += time.perf_counter() - begin
                tally.add(expected, got, targets, start)
    total = sum(len(run) - 1 for run in chosen)
    read = ", ".join(path.name for path in texts)
    print(f"{reference.spec.name} in float32, {total} positions in {len(chosen)} runs of {read}")
    columns = f"{'candidate':44} {'position':>11} {'n':>7} {'mean KL':>10} {'p99':>9} {'most':>8}"
    print(f"{columns} {'surprise, nats':>17} first")
    for name, tally in zip(names, tallies, strict=True):
        print("\n".join(tally.lines(name)))
    took = ", ".join(f"{name} {tally.seconds:.0f}" for name, tally in zip(names, tallies, strict=True))
    print(f"seconds: reference {spent:.0f}, {took}")


if __name__ == "__main__":
    main()
