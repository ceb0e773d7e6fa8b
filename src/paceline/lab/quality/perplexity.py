"""Perplexity of a text: exp of the mean negative log probability of its tokens, by windows with a stride.

A window holds `window` tokens; it scores its last `stride` tokens, which have at least `window - stride` tokens before
them (the first window scores all but its first token). Every token but the first is scored once. The windows are those
of the usual strided evaluation; no token that begins a sequence is put before the later ones.

Servers without /tokenize get windows of characters that do not overlap: less context, so a higher number. The method is
stored, and only equal methods compare.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import msgspec

from paceline.contracts.artefact import Estimate
from paceline.errors import ConfigError, LabError
from paceline.lab.quality.caller import Caller
from paceline.lab.quality.clusters import mean_of_clusters
from paceline.lab.quality.distributions import PromptLogprobs

_CHARS_PER_TOKEN = 4  # for servers that cannot count


class WindowScore(msgspec.Struct, frozen=True, array_like=True):
    num_tokens: int
    nll: float  # nats, summed


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    method: str  # tokens, or characters: what the windows are cut by
    window: int
    stride: int
    text_sha256: str
    windows: tuple[WindowScore, ...]

    @property
    def num_tokens(self) -> int:
        return sum(window.num_tokens for window in self.windows)

    @property
    def value(self) -> float:
        return math.exp(sum(window.nll for window in self.windows) / self.num_tokens)


def spans(num_tokens: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """(begin, end, first scored) of each window over a text of so many tokens. Raises ConfigError."""
    if not 1 <= stride <= window - 1:
        raise ConfigError("the stride does not fit the window", seen=stride, expected=f"1 to {window - 1}")
    found: list[tuple[int, int, int]] = []
    scored = 1  # the first token has nothing before it
    while scored < num_tokens:
        end = min(num_tokens, window if not found else scored + stride)
        found.append((max(0, end - window), end, scored))
        scored = end
    return found


async def perplexity(
    caller: Caller,
    text: str,
    *,
    window: int = 1024,
    stride: int = 512,
    max_tokens: int | None = None,
    on_done: Callable[[], None] | None = None,
) -> Perplexity:
    """Raises LabError where the server does not tell log probabilities, ConfigError for windows that cannot be."""
    asker = PromptLogprobs(caller, num_top=1)
    ids = await caller.tokenize(text)
    work: list[tuple[str | list[int], int]]  # prompt, and how many of its tokens are not scored
    if ids is not None:
        ids = ids[:max_tokens]
        work = [(ids[begin:end], scored - begin) for begin, end, scored in spans(len(ids), window, stride)]
    else:
        text = text[: max_tokens * _CHARS_PER_TOKEN] if max_tokens else text
        size = window * _CHARS_PER_TOKEN
        work = [(text[i : i + size], 1) for i in range(0, len(text), size)]

    async def one(given: tuple[str | list[int], int]) -> WindowScore:
        prompt, skipped = given
        found = await asker.ask(prompt)
        scored = found[skipped - 1 :]  # the first token has no entry
        return WindowScore(len(scored), -sum(each.logprob for each in scored))

    if not work:
        raise LabError("the text is too short", expected="two tokens or more")
    first = await one(work[0])  # finds the form before many ask at once
    if on_done is not None:
        on_done()
    rest: list[WindowScore] = await caller.map(one, work[1:], on_done)
    windows = tuple(each for each in (first, *rest) if each.num_tokens)
    if not windows:
        raise LabError("the text is too short", expected="two tokens or more")
    return Perplexity(
        model=await caller.model(),
        method="tokens" if ids is not None else "characters",
        window=window,
        stride=stride if ids is not None else window,
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        windows=windows,
    )


def ratio(reference: Perplexity, candidate: Perplexity) -> Estimate:
    """Perplexity of the candidate over the reference's, windows paired; 1.0 is no change. Raises ConfigError where
    the two did not read the same windows."""
    same = ("method", "window", "stride", "text_sha256")
    if any(getattr(reference, name) != getattr(candidate, name) for name in same) or _sizes(reference) != _sizes(
        candidate
    ):
        raise ConfigError("the two perplexities are of different windows, and do not compare")
    clusters = [
        ([(b.nll - a.nll) / a.num_tokens] * a.num_tokens)
        for a, b in zip(reference.windows, candidate.windows, strict=True)
    ]
    found = mean_of_clusters(clusters)
    return msgspec.structs.replace(found, value=_exp(found.value), lo=_exp(found.lo), hi=_exp(found.hi), unit="x")


def _sizes(found: Perplexity) -> Sequence[int]:
    return [window.num_tokens for window in found.windows]


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)
