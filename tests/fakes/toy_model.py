"""A toy language model: integer hashes in the shape of a transformer, exact, fast and sensitive to every input.

One layer per KV group. The value a layer caches for position p depends on all that position p saw in the layers below;
attention is a sum modulo 2**64 over what the layer's window lets p see. So the next token is a pure function of the
whole history and any wrong, missing, stale or swapped KV entry changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.contracts.request import SamplingParams, TokenLogprob
from paceline.contracts.step import RowAdmit

U64 = np.uint64


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser over an array of uint64."""
    x = x + U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


_MASK = (1 << 64) - 1


def _mix1(x: int) -> int:
    """`mix` of one number, in Python integers."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class Draw:
    """Everything a row's draw depends on besides its logits."""

    sampling: SamplingParams
    choice: int
    num_prompt: int
    stop_token_ids: tuple[int, ...]

    @staticmethod
    def of(admit: RowAdmit) -> Draw:
        return Draw(admit.sampling, admit.choice, admit.num_prompt, admit.stop_token_ids)


@dataclass(frozen=True)
class ToyModel:
    """`windows[g]` is layer g's window in tokens, None = sees everything."""

    vocab_size: int = 64
    windows: tuple[int | None, ...] = (None,)

    def embed(self, token_ids: np.ndarray) -> np.ndarray:
        return mix(np.asarray(token_ids, dtype=np.int64).astype(U64) + U64(0x1234567))

    def kv(self, layer: int, hidden: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """What layer `layer` caches for `positions`. Both arrays [n]."""
        return mix(hidden ^ mix(positions.astype(U64) * U64(0x9E3779B9) + U64(layer * 7919)))

    def attend(self, layer: int, hidden: np.ndarray, visible: Sequence[np.ndarray]) -> np.ndarray:
        """Hidden states after layer `layer`; `visible[i]` is all the KV that query i sees."""
        sums = np.asarray([v.sum(dtype=U64) for v in visible], dtype=U64)
        return mix(hidden * U64(3) + sums + U64(layer))

    def first_visible(self, layer: int, position: int) -> int:
        window = self.windows[layer]
        return 0 if window is None else max(0, position - window + 1)

    def hidden(self, token_ids: Sequence[int]) -> np.ndarray:
        """Last hidden states of every position, computed whole and without a cache: the serial reference."""
        positions = np.arange(len(token_ids))
        hidden = self.embed(np.asarray(token_ids))
        for layer in range(len(self.windows)):
            kv = self.kv(layer, hidden, positions)
            hidden = self.attend(layer, hidden, [kv[self.first_visible(layer, p) : p + 1] for p in positions.tolist()])
        return hidden

    def draw(self, hidden: int, position: int, how: Draw, allowed: np.ndarray | None = None) -> int:
        """Token number `position + 1` given the hidden state of `position`; `allowed` [vocab] bool is a mask."""
        output = position + 1 - how.num_prompt
        key = hidden
        if not how.sampling.greedy:
            key = _mix1(_mix1(key ^ (how.sampling.seed or 0)) + how.choice * 1_000_003 + output)
        banned = set(how.stop_token_ids) if output < how.sampling.min_tokens else set()
        if allowed is not None and banned.issuperset(np.flatnonzero(allowed).tolist()):
            banned = set()  # a grammar that is complete ends it, however short it is
        for attempt in range(64 * self.vocab_size):
            token = _mix1(key + attempt) % self.vocab_size
            if token not in banned and (allowed is None or allowed[token]):
                return token
        raise AssertionError("every token is banned")

    def logprob(self, hidden: int, token_id: int) -> TokenLogprob:
        """A made-up but exact number: a function of hidden state and token."""
        return TokenLogprob(token_id, -(_mix1(hidden ^ (token_id * 31)) % 10_000) / 1000.0, 1)

    def generate(self, token_ids: Sequence[int], how: Draw, num_tokens: int) -> list[int]:
        """`num_tokens` more tokens, one request at a time, everything recomputed at each: no stop rules."""
        ids = list(token_ids)
        for _ in range(num_tokens):
            ids.append(self.draw(int(self.hidden(ids)[-1]), len(ids) - 1, how))
        return ids[len(token_ids) :]


class ToyDrafter:
    """A drafter that often knows the toy model's greedy continuation and often does not."""

    def __init__(self, model: ToyModel, wrong_every: int = 3) -> None:
        self._model = model
        self._wrong_every = wrong_every

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
        how = Draw(SamplingParams(temperature=0.0), 0, 0, ())
        drafts = self._model.generate(token_ids.tolist(), how, max_drafts)
        return [
            (t + (1 if (len(token_ids) + i) % self._wrong_every == 0 else 0)) % self._model.vocab_size
            for i, t in enumerate(drafts)
        ]
