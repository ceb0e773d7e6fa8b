"""The seams. The engine decides on one side of each, something else computes, keeps time or speaks on the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np

from paceline.contracts.decision import Decision
from paceline.contracts.kv import KVEvents, KVLayout, KVStats
from paceline.contracts.request import Request, RequestOutput
from paceline.contracts.step import Logits, SampleInputs, StepPlan, StepResult

SpecKind = Literal["host", "device"]
Handle: TypeAlias = Any
Prices: TypeAlias = dict[str, float | tuple[float, ...]]
"""What a cost model knows, by the names of the arguments that make an equal one. A journal begins with it."""


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a step as the executor will run it (padded): graphs and cost features key on it."""

    num_tokens: int
    num_rows: int
    num_sampled: int
    context_tokens: int  # sum over rows of tokens already cached
    attention_pairs: int = 0  # sum over rows of query positions x visible context
    num_prompt_logits: int = 0  # positions whose logits are computed to report the prompt, not to draw


def decoding_shape(num_rows: int, context_tokens: int) -> StepShape:
    """One token for each of `num_rows` rows that hold `context_tokens` together."""
    return StepShape(
        num_tokens=num_rows,
        num_rows=num_rows,
        num_sampled=num_rows,
        context_tokens=context_tokens,
        attention_pairs=context_tokens + num_rows,
    )


def prefill_shape(num_tokens: int, num_cached: int = 0, *, sampled: bool = True) -> StepShape:
    """A chunk of one prompt behind `num_cached` positions; `sampled`: it ends the prompt and draws a token."""
    return StepShape(
        num_tokens=num_tokens,
        num_rows=1,
        num_sampled=int(sampled),
        context_tokens=num_cached,
        attention_pairs=num_tokens * num_cached + num_tokens * (num_tokens + 1) // 2,
    )


def joined(one: StepShape, other: StepShape) -> StepShape:
    """Both in one step. A shape without its pairs counts with the fewest there can be."""
    return StepShape(
        num_tokens=one.num_tokens + other.num_tokens,
        num_rows=one.num_rows + other.num_rows,
        num_sampled=one.num_sampled + other.num_sampled,
        context_tokens=one.context_tokens + other.context_tokens,
        attention_pairs=fewest_pairs(one) + fewest_pairs(other),
        num_prompt_logits=one.num_prompt_logits + other.num_prompt_logits,
    )


def fewest_pairs(shape: StepShape) -> int:
    """The pairs of a shape, or the fewest that its context and positions allow."""
    return max(shape.attention_pairs, shape.context_tokens + shape.num_tokens)


def plan_shape(plan: StepPlan) -> StepShape:
    """The plan's size, unpadded. `attention_pairs`: a query at position p sees p + 1 keys (windows not counted)."""
    start, count = plan.start.astype(np.int64), plan.count.astype(np.int64)
    return StepShape(
        num_tokens=int(count.sum()),
        num_rows=plan.num_rows,
        num_sampled=int(((plan.num_draft + 1) * plan.sample).sum()),
        context_tokens=int(start.sum()),
        attention_pairs=int((count * start + count * (count + 1) // 2).sum()),
        num_prompt_logits=int(count[plan.logits == Logits.ALL].sum()),
    )


class ExecutorCaps(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor can do. Fixed after start."""

    layout: KVLayout
    max_rows: int
    max_tokens: int  # positions one step may compute
    vocab_size: int
    max_in_flight: int = 1  # plans submitted and not yet applied
    device_feedback: bool = False  # a row may enter a plan while its input token is still in flight
    spec_kinds: tuple[SpecKind, ...] = ()
    rewindable: bool = True  # rejected drafts leave no trace in the state
    batch_invariant: bool = False
    needs_token_ids: bool = True  # False: runs trace prompts too
    masks: bool = False  # draws only what the masks of SampleInputs allow; else requests with a grammar are refused


class Executor(Protocol):
    """Runs plans in the order submitted."""

    caps: ExecutorCaps

    def submit(self, plan: StepPlan) -> Handle: ...

    def sample(self, handle: Handle, inputs: SampleInputs | None) -> None:
        """Let the draw go ahead. Called once per submit, after it; masks may take until now."""
        ...

    def poll(self, handle: Handle, *, block: bool = True) -> StepResult | None:
        """The result, or None when it is not there and `block` is false."""
        ...

    def shape(self, plan: StepPlan) -> StepShape: ...

    def close(self) -> None: ...


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A look at one engine between steps."""

    num_decoding: int  # rows that make a token in each step
    decode_context_tokens: int  # that they hold together
    prefill_tokens_ahead: int  # prompt positions not computed yet, of running and waiting requests
    num_ahead: int = 0  # requests those belong to
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk_tokens: int | None = None
    min_prefill_tokens: int = 1
    mean_tokens_left: float = 0.0  # that a decoding row still makes; 0: not known, rows are taken to end in time
    ms_left_in_step: float = 0.0


class Predicted(Protocol):
    """Milliseconds, with an interval: `lo <= value <= hi`."""

    @property
    def value(self) -> float: ...

    @property
    def lo(self) -> float: ...

    @property
    def hi(self) -> float: ...


class CostModel(Protocol):
    """Milliseconds for work. Scheduling asks it; executors' reports teach it."""

    def step_ms(self, shape: StepShape) -> float: ...

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        """Marginal time of computing `num_tokens` prompt positions behind `num_cached` others."""
        ...

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        """Most positions of one prompt, behind `num_cached` others, that a step of `shape` takes in and still ends
        within `ms`; 0 when not even one fits."""
        ...

    def predict_ttft(self, snapshot: EngineSnapshot, num_prompt: int, num_cached: int = 0) -> Predicted:
        """Time from now to the first token of a prompt of `num_prompt` tokens, `num_cached` of them in the cache."""
        ...

    def observe(self, shape: StepShape, ms: float) -> None:
        """A step of `shape` took `ms` on the device. Part of what a journal replays: an answer may depend on what was
        observed before, and on nothing else."""
        ...


class Drafter(Protocol):
    """Host drafter: proposes what might come next from a request's own tokens. Stateless between calls."""

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> Sequence[int]: ...


class Grammar(Protocol):
    """Which tokens are legal next in one text. No torch: masks are numpy uint32 words, bit set = allowed.

    Not for several threads at once. What a grammar's own limits do not allow (a state that takes too much to work out)
    shows in `error`; from then on nothing it says means anything.
    """

    def accept(self, token_id: int) -> bool:
        """Go on by one token. False: it is not legal here, and nothing has changed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last `num_tokens` accepted tokens back."""
        ...

    def fill_mask(self, words: np.ndarray) -> None:
        """Overwrite `words`, [ceil(vocab / 32)] uint32. Ids that end a sequence are allowed where `accepting`."""
        ...

    def clone(self) -> Grammar:
        """Another text in the same state. Clones may share their limits: then all of them are of no use when one is,
        and those that had no error yet may call legal tokens illegal."""
        ...

    @property
    def finishes(self) -> bool:
        """Near the limit of its answer, the text is to be led to its end by `way_out`."""
        ...

    def way_out(self, most: int, *, further: bool = False) -> list[int] | None:
        """Tokens that make the text whole, at most `most`: none where it is, unless it is to go `further`. None where
        no way was found. The same for every clone in the same state; nothing changes."""
        ...

    @property
    def accepting(self) -> bool:
        """The text so far is whole: it may end here."""
        ...

    @property
    def done(self) -> bool:
        """The text so far is whole and nothing can follow."""
        ...

    @property
    def error(self) -> str:
        """Why it is of no use any more; empty while it is."""
        ...


class GrammarFactory(Protocol):
    """Grammars for one tokenizer. May be called from any thread."""

    def compile(self, grammar: bytes) -> Grammar:
        """A fresh grammar from `Request.grammar`, at the beginning of a text. Raises RequestError (param `grammar`)
        when it is wrong, or asks for more than the limits allow."""
        ...


class Tokenizer(Protocol):
    """Text to ids and ids to bytes."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str: ...

    def token_bytes(self) -> Sequence[bytes]:
        """Bytes each id adds to the text; special tokens add none."""
        ...


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the engine between steps."""

    time: float
    step: int
    num_running: int
    num_waiting: int
    waiting_tokens: int
    kv: KVStats
    num_preemptions: int = 0
    num_finished: int = 0
    computed_tokens: int = 0
    wasted_tokens: int = 0
    output_tokens: int = 0
    saved_prefill_ms: float = 0.0  # prefix hits, priced by the cost model
    num_refused_late: int = 0  # their first token would have missed its target
    num_late: int = 0  # whose turn went to others because their TTFT target could not be met any more
    num_paced_steps: int = 0  # that took in less of a prompt for the sake of running rows
    stalled: bool = False
    trouble: str = ""  # why it is stalled, or has stopped for good, with the last decisions; lines of text for people
    last_step: dict[str, float] = msgspec.field(default_factory=dict)  # rows, tokens, decode_rows, host_us, device_ms
    recent: list[Decision] = msgspec.field(default_factory=list)  # the newest decisions, oldest first


class EngineClient(Protocol):
    """The engine as its users see it, whether it runs in this process, in a child or elsewhere."""

    def submit(self, request: Request) -> None:
        """Take a request in, or raise RequestError / QueueFullError; nothing else changes then."""
        ...

    def submit_all(self, requests: Sequence[Request]) -> None:
        """Take all of them in (the choices of one call, say), in order, or raise what the first that is refused raises;
        then none is taken in and nothing else changes. One round trip."""
        ...

    def prepare_grammar(self, grammar: bytes) -> bool:
        """Get a grammar ready for `submit`. True: it is. False: it is being compiled; ask again soon. Raises
        RequestError when it is wrong. Without this call `submit` itself waits for the compilation."""
        ...

    def abort(self, request_id: int) -> None:
        """End it in whatever phase it is. Unknown and finished ids are ignored."""
        ...

    def abort_all(self, request_ids: Sequence[int]) -> None:
        """`abort` for each of them, in one round trip."""
        ...

    def outputs(self, timeout_s: float | None = None) -> Iterator[RequestOutput]:
        """Outputs that are ready, waiting at most `timeout_s` for the first."""
        ...

    def stats(self) -> EngineStats:
        """A look between steps. While a step hangs: the last look, with `stalled` and `trouble`."""
        ...

    def decisions(self, request_id: int) -> Sequence[Decision]: ...

    def reset_prefix_cache(self) -> bool: ...

    def kv_events(self) -> KVEvents:
        """What became findable in the prefix cache, and what no longer is, since the last call. One follower drains."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Take nothing new in and run what is there to its end; True if all of it ended in time."""
        ...

    def close(self) -> None: ...
