"""An executor without a model: it takes a plan, lets virtual time pass as a cost model says, and invents the tokens.

The scheduler, the KV manager and the loop above it are the real ones. Plans queue on one device that runs them in
order, so with two plans in flight the second starts when the first is done. Not modelled: transfers, host time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paceline.contracts.kv import KVLayout
from paceline.contracts.mix import mix64
from paceline.contracts.ports import CostModel, ExecutorCaps, StepShape, plan_shape
from paceline.contracts.step import RowAdmit, SampleInputs, StepPlan, StepResult
from paceline.errors import UnsupportedError
from paceline.sim.clock import VirtualClock

Oracle = Callable[[RowAdmit, int], int]
"""(the row as admitted, output position) -> token id. Position 0 is the first output token of the request."""


def seeded_oracle(
    vocab_size: int,
    *,
    seed: int = 0,
    eos_token_id: int | None = None,
    output_lengths: Mapping[int, int] | None = None,
) -> Oracle:
    """Tokens that are a pure function of (seed, request, position), so batching and preemption cannot change them.

    `output_lengths` (request id -> tokens, the end-of-sequence token included) makes a request end there by emitting
    `eos_token_id`; otherwise that token never comes and `max_tokens` ends the request.
    """
    if output_lengths and eos_token_id is None:
        raise UnsupportedError("output lengths without an end", expected="eos_token_id", fix="pass eos_token_id")
    lengths = dict(output_lengths or {})
    num_plain = vocab_size - (eos_token_id is not None)

    def draw(row: RowAdmit, position: int) -> int:
        if eos_token_id is not None and position + 1 == lengths.get(row.request_id):
            return eos_token_id
        token = mix64(mix64(mix64(seed) ^ row.request_id) ^ position) % num_plain
        return token + 1 if eos_token_id is not None and token >= eos_token_id else token

    return draw


def simulated_caps(
    layout: KVLayout,
    *,
    max_rows: int = 64,
    max_tokens: int = 2048,
    vocab_size: int = 32_000,
    max_in_flight: int = 1,
    host_drafts: bool = False,
) -> ExecutorCaps:
    """Caps of a simulated executor. It invents tokens, so it can feed them back and needs no token ids."""
    return ExecutorCaps(
        layout=layout,
        max_rows=max_rows,
        max_tokens=max_tokens,
        vocab_size=vocab_size,
        max_in_flight=max_in_flight,
        device_feedback=max_in_flight > 1,
        spec_kinds=("host",) if host_drafts else (),
        batch_invariant=True,
        needs_token_ids=False,
    )


def _int32(values: list[int]) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


class _Row:
    """What the executor keeps of a row: who is in it and how many tokens it knows."""

    __slots__ = ("admit", "num_tokens")

    def __init__(self, admit: RowAdmit) -> None:
        self.admit = admit
        self.num_tokens = len(admit.token_ids)


class SimulatedExecutor:
    """`contracts.ports.Executor` in virtual time. Drafts are accepted when they equal the oracle's token, as drawn.

    `cost` None: a step takes what its plan estimates, which is right where the scheduler asks the same prices.
    """

    def __init__(
        self,
        caps: ExecutorCaps,
        cost: CostModel | None,
        clock: VirtualClock,
        oracle: Oracle | None = None,
    ) -> None:
        if "device" in caps.spec_kinds:
            raise UnsupportedError("the simulated executor has no device drafter", fix='spec_kinds=("host",) or ()')
        self.caps = caps
        self._cost = cost
        self._clock = clock
        self._oracle = oracle if oracle is not None else seeded_oracle(caps.vocab_size)
        self._rows: dict[int, _Row] = {}
        self._busy_until = clock.now()
        self._results: dict[int, tuple[float, StepResult]] = {}  # step -> (when it is done, what it brought)
        self._sampled: dict[int, bool] = {}

    def submit(self, plan: StepPlan) -> int:
        """Queue the step behind those before it. Returns its step number."""
        for row in plan.releases.tolist():
            self._rows.pop(row, None)
        for admit in plan.admits:
            self._rows[admit.row] = _Row(admit)
        ms = plan.est_ms if self._cost is None else self._cost.step_ms(self.shape(plan))
        self._busy_until = max(self._busy_until, self._clock.now()) + ms / 1000.0
        self._results[plan.step] = (self._busy_until, self._draw(plan, ms))
        self._sampled[plan.step] = False
        return plan.step

    def sample(self, handle: int, inputs: SampleInputs | None) -> None:
        if inputs is not None:
            raise UnsupportedError("the simulated executor draws from an oracle and takes no masks")
        self._sampled[handle] = True

    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        """The result; waiting for it moves the clock to the moment the device is done."""
        assert self._sampled[handle], "sample() comes before poll()"
        done_at, result = self._results[handle]
        if done_at > self._clock.now():
            if not block:
                return None
            self._clock.advance_to(done_at)
        del self._results[handle], self._sampled[handle]
        return result

    def done_at(self, handle: int) -> float:
        """When the step will be done, clock seconds."""
        return self._results[handle][0]

    def skip(self, rows: Sequence[int], num: int) -> None:
        """These rows have drawn `num` tokens that it was not asked for; no time passes."""
        for row in rows:
            self._rows[row].num_tokens += num

    def shape(self, plan: StepPlan) -> StepShape:
        return plan_shape(plan)

    def close(self) -> None:
        self._rows.clear()
        self._results.clear()

    def _draw(self, plan: StepPlan, ms: float) -> StepResult:
        draft_at = 0
        rows: list[int] = []
        num_tokens: list[int] = []
        tokens: list[int] = []
        drafts = plan.draft_ids.tolist()
        columns = zip(plan.row.tolist(), plan.num_draft.tolist(), plan.sample.tolist(), strict=True)
        for index, num_draft, sample in columns:
            proposed = drafts[draft_at : draft_at + num_draft]
            draft_at += num_draft
            if not sample:
                continue
            row = self._rows[index]
            position = row.num_tokens - row.admit.num_prompt
            drawn = [self._oracle(row.admit, position)]
            for draft in proposed:
                if draft != drawn[-1]:
                    break
                drawn.append(self._oracle(row.admit, position + len(drawn)))
            row.num_tokens += len(drawn)
            rows.append(index)
            num_tokens.append(len(drawn))
            tokens.extend(drawn)
        return StepResult(
            step=plan.step,
            row=_int32(rows),
            num_tokens=_int32(num_tokens),
            tokens=_int32(tokens),
            device_ms=ms,
        )
