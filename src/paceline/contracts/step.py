"""The plan of one step and its result: the only things that cross the executor port.

A `StepPlan` is self-contained: an executor that sees nothing but the encoded plans, in order, produces the same tokens.
So it carries deltas: a row's tokens and sampling once, at admission, then only (row, start, count) and new blocks. It
is columns of numpy arrays rather than objects per row, because it is built and encoded at every step.

How an executor keeps a row: at admission the row's tokens are all known ids. Each sampled (accepted) token is appended
by the executor itself to its row, so the input of position p is always the row's token p: known at admission, a draft
of this plan, or sampled by an earlier plan (possibly still in flight: then `feed_step` names that plan).

R rows run in the step, D draft tokens in all.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from paceline.contracts.request import SamplingParams, TokenLogprob

Int32: TypeAlias = np.ndarray
NO_FEED = -1
T = TypeVar("T")


class Logits(IntEnum):
    """For which positions of a row logits are needed."""

    NONE = 0  # the row does not reach its last known token: nothing is sampled
    LAST = 1  # the last position, and each draft position when the row has drafts
    ALL = 2  # every position of the chunk: prompt logprobs (the last one is sampled only if `sample` says so)
    POOL = 3  # hidden states for an embedding


class RowAdmit(msgspec.Struct, frozen=True, kw_only=True):
    """A request becomes resident in a row. What the row held before is forgotten."""

    row: int
    request_id: int
    epoch: int
    choice: int
    token_ids: Int32  # all known tokens: prompt, then output so far
    num_prompt: int  # of those, the prompt; output positions count from here
    sampling: SamplingParams  # seed resolved
    stop_token_ids: tuple[int, ...] = ()  # what min_tokens must suppress: eos (unless ignored) and the request's own
    adapter_slot: int = 0
    grammar: bool = False  # SampleInputs will bring a mask for each of its draws


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one step does. Executors apply the columns in this order: releases, admits, copies, new blocks, rows."""

    step: int
    # residency
    releases: Int32  # rows that end
    admits: tuple[RowAdmit, ...]
    # blocks. A row's table starts empty at admission and grows only through these columns (hit blocks included)
    new_block_group: Int32
    new_block_row: Int32
    new_block_index: Int32  # logical index in the row's table of that group
    new_block_id: Int32
    copy_src: Int32  # block to block, all of its layers, before anything is written
    copy_dst: Int32
    # rows, R entries each, decode rows first
    row: Int32
    start: Int32  # first position computed = planned tokens so far
    count: Int32  # positions computed, drafts included
    num_draft: Int32  # the last num_draft of count are drafts
    want_drafts: Int32  # how many tokens a device drafter should propose after this step
    logits: Int32  # Logits
    sample: Int32  # 1: the row reaches its last known (or in-flight) token and draws
    feed_step: Int32  # step whose draw is this row's first input token, NO_FEED when that token is known
    draft_ids: Int32  # D: concatenated drafts, in row order
    est_ms: float = 0.0  # the cost model's estimate; not part of the digest

    @property
    def num_rows(self) -> int:
        return len(self.row)

    @property
    def num_tokens(self) -> int:
        return int(self.count.sum())

    @property
    def is_empty(self) -> bool:
        return not (len(self.row) or len(self.releases) or self.admits)

    def digest(self) -> bytes:
        """128-bit digest of the canonical bytes, `est_ms` excluded. Equal digests: the same step."""
        return hashlib.blake2b(encode(msgspec.structs.replace(self, est_ms=0.0)), digest_size=16).digest()


class SampleInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the draw needs and only the host knows, ready after the forward pass has begun: grammar masks."""

    mask_row: Int32  # row of each mask, a row's draft positions one after another
    masks: np.ndarray  # [masks, ceil(vocab / 32)] uint32, bit set = token allowed


GRAMMAR_TOO_COMPLEX = "grammar_too_complex"  # code of a fault that the request's own grammar is to blame for


class RowFault(msgspec.Struct, frozen=True, kw_only=True):
    """Something went wrong for one row only (not-a-number logits, a bad adapter); its neighbours are right. The output
    that ends the request has `code: message` for its error."""

    row: int
    code: str
    message: str


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step brought. `tokens` of row k are the next `num_tokens[k]` entries: accepted drafts, then the draw."""

    step: int
    row: Int32  # the rows with `sample`, in plan order
    num_tokens: Int32
    tokens: Int32
    drafts: Int32 = msgspec.field(default_factory=lambda: np.empty(0, np.int32))  # device drafter's proposals ...
    num_drafts: Int32 = msgspec.field(default_factory=lambda: np.empty(0, np.int32))  # ... per entry of `row`
    logprobs: dict[int, tuple[TokenLogprob, ...]] = msgspec.field(default_factory=dict)  # row -> one per token
    prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = msgspec.field(default_factory=dict)  # row -> chunk positions
    faults: tuple[RowFault, ...] = ()
    # row -> how many of its tokens, the last of which completes its grammar; added by the engine: it has the grammars
    grammar_ends: dict[int, int] = msgspec.field(default_factory=dict)
    transfers_done: tuple[int, ...] = ()  # ids of finished transfers, whose blocks are no longer pinned
    device_ms: float = 0.0


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot encode {type(value)}")


def _decode_array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    raise NotImplementedError(f"cannot decode {kind}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def encode(value: Any) -> bytes:
    """Any contract value as msgpack; arrays keep type and shape."""
    return _encoder.encode(value)


def decode(data: bytes, kind: type[T]) -> T:
    """The inverse of `encode`. Arrays come back read-only."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_array)
