"""A scheduler with the smallest thing that can answer its plans: tokens come from a script, nothing is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import CostModel, Drafter, ExecutorCaps, SpecKind, StepShape
from paceline.contracts.request import Request, RequestOutput, SamplingParams, TokenLogprob, TokenPrompt
from paceline.contracts.step import Logits, RowFault, StepPlan, StepResult
from paceline.engine.decisions import DecisionRing
from paceline.engine.kv_manager import KVManager
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import SchedulerSettings

VOCAB = 256
EOS = 255
BYTES = [bytes([i]) for i in range(EOS)] + [b""]  # token ids are characters; the last adds none
Script = Callable[[int, int], int]  # (request id, output index) -> token


class PerToken:
    """Costs a millisecond a token and nothing else, so waiting for a shared prefix always pays."""

    def __init__(self, fixed_ms: float = 0.0) -> None:
        self.fixed_ms = fixed_ms

    def step_ms(self, shape: StepShape) -> float:
        return self.fixed_ms

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        return float(num_tokens)

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        return at_most

    def observe(self, shape: StepShape, ms: float) -> None:
        pass


def request(request_id: int, prompt: int | Sequence[int], max_tokens: int | None = 8, **fields: Any) -> Request:
    """`prompt`: its tokens, or how many (different for every request). Sampling's fields go by their names."""
    names = SamplingParams.__struct_fields__
    sampling = {k: fields.pop(k) for k in list(fields) if k in names}
    if isinstance(prompt, int):
        prompt = [(7 * request_id + 13 * i + i * i) % 97 + 100 for i in range(prompt)]
    if "stop" in sampling:
        sampling["stop"] = tuple(sampling["stop"])
        fields["stop_strings"] = tuple(s.encode() for s in sampling["stop"])
    return Request(
        request_id=request_id,
        prompt=TokenPrompt(ids=np.asarray(prompt, dtype=np.int32)),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        **fields,
    )


class Driver:
    """Plans and applies in virtual time; remembers plans and outputs."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        windows: Sequence[int | None] = (None,),
        depth: int = 1,
        feedback: bool | None = None,
        max_rows: int = 8,
        max_tokens: int = 64,
        spec_kinds: tuple[SpecKind, ...] = (),
        needs_token_ids: bool = True,
        script: Script = lambda _, index: index % 90,
        cost: CostModel | None = None,
        drafter: Drafter | None = None,
        prefix_caching: bool = True,
        token_bytes: Sequence[bytes] | None = BYTES,
        **settings: Any,
    ) -> None:
        groups = tuple(
            KVGroupSpec(
                kind="full" if w is None else "sliding",
                layers=(i,),
                block_size=block_size,
                bytes_per_block=64,
                window=w,
            )
            for i, w in enumerate(windows)
        )
        self.caps = ExecutorCaps(
            layout=KVLayout(groups=groups, num_blocks=num_blocks),
            max_rows=max_rows,
            max_tokens=max_tokens,
            vocab_size=VOCAB,
            max_in_flight=depth,
            device_feedback=depth > 1 if feedback is None else feedback,
            spec_kinds=spec_kinds,
            needs_token_ids=needs_token_ids,
        )
        given = {"max_num_seqs": max_rows, "max_num_batched_tokens": max_tokens, "max_model_len": 128, "watermark": 0.0}
        self.settings = SchedulerSettings(**{**given, **settings})
        self.kv = KVManager(
            self.caps.layout,
            prefix_caching=prefix_caching,
            max_chunk_tokens=self.settings.max_uncommitted_tokens(depth),
        )
        self.scheduler = Scheduler(
            self.settings,
            self.caps,
            self.kv,
            PerToken() if cost is None else cost,
            token_bytes=token_bytes,
            eos_token_ids=(EOS,),
            drafter=drafter,
            decisions=DecisionRing(256),
        )
        self.script = script
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self.outputs: list[RequestOutput] = []
        self.faults: dict[int, str] = {}  # request id -> code: its next draw fails
        self.device_drafts: dict[int, list[int]] = {}  # request id -> what the device proposes after its next draw
        self._rows: dict[int, tuple[int, int, int]] = {}  # row -> request id, prompt tokens, output tokens
        self._in_flight: deque[StepPlan] = deque()

    def add(self, *requests: Request, known: bool = False) -> Driver:
        """`known`: the scheduler is told their answers beforehand."""
        for each in requests:
            answer = [self.script(each.request_id, index) for index in range(VOCAB)] if known else None
            self.scheduler.add(each, self.now, answer=answer)
        return self

    def plan(self, seconds: float = 0.001) -> StepPlan:
        self.now += seconds
        self.scheduler.expire(self.now)
        plan = self.scheduler.plan(self.now)
        if not plan.is_empty:
            self.plans.append(plan)
            self._in_flight.append(plan)
        return plan

    def apply(self) -> list[RequestOutput]:
        """The oldest plan in flight ends. Returns what it brought."""
        plan = self._in_flight.popleft()
        self.scheduler.apply(self.answer(plan), self.now)
        self.kv.check()
        return self.drain()

    def drain(self) -> list[RequestOutput]:
        outputs = self.scheduler.outputs()
        self.outputs += outputs
        return outputs

    def step(self, seconds: float = 0.001) -> StepPlan:
        """One step at full depth; the last ones without a new plan."""
        if len(self._in_flight) == self.caps.max_in_flight:
            self.apply()
        plan = self.plan(seconds)
        keep = self.caps.max_in_flight - 1 if not plan.is_empty else 0
        while len(self._in_flight) > keep:
            self.apply()
        self.drain()
        return plan

    def run(self, max_steps: int = 500) -> Driver:
        for _ in range(max_steps):
            if not self.scheduler.has_work and not self._in_flight:
                return self
            self.step()
        raise AssertionError(f"no end\n{self.scheduler.decisions.dump()}")

    def answer(self, plan: StepPlan) -> StepResult:
        for row in plan.releases.tolist():
            del self._rows[row]
        for admit in plan.admits:
            assert admit.row not in self._rows
            self._rows[admit.row] = (admit.request_id, admit.num_prompt, len(admit.token_ids) - admit.num_prompt)
        drafts = plan.draft_ids.tolist()
        rows: list[int] = []
        counts: list[int] = []
        tokens: list[int] = []
        proposals: list[int] = []
        num_proposals: list[int] = []
        logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        faults: list[RowFault] = []
        columns = (plan.row, plan.start, plan.count, plan.num_draft, plan.want_drafts, plan.logits, plan.sample)
        for row, start, count, num_draft, want, logits, sample in zip(*(c.tolist() for c in columns), strict=True):
            request_id, num_prompt, num_output = self._rows[row]
            proposed, drafts = drafts[:num_draft], drafts[num_draft:]
            known = num_prompt + num_output
            assert start + count - num_draft <= known
            assert bool(sample) == (start + count - num_draft == known), "draws exactly at the last known token"
            if logits == Logits.ALL:
                prompt_logprobs[row] = tuple(TokenLogprob(p + 1, -1.0, 1) for p in range(start, start + count))
            if not sample:
                continue
            if request_id in self.faults:
                faults.append(RowFault(row=row, code=self.faults.pop(request_id), message="broken"))
                continue
            drawn = [self.script(request_id, num_output)]
            while len(drawn) <= num_draft and proposed[len(drawn) - 1] == drawn[-1]:
                drawn.append(self.script(request_id, num_output + len(drawn)))
            self._rows[row] = (request_id, num_prompt, num_output + len(drawn))
            rows.append(row)
            counts.append(len(drawn))
            tokens += drawn
            logprobs[row] = tuple(TokenLogprob(t, -0.5, 1) for t in drawn)
            offered = self.device_drafts.pop(request_id, [])[:want]
            proposals += offered
            num_proposals.append(len(offered))
        return StepResult(
            step=plan.step,
            row=np.asarray(rows, np.int32),
            num_tokens=np.asarray(counts, np.int32),
            tokens=np.asarray(tokens, np.int32),
            drafts=np.asarray(proposals, np.int32),
            num_drafts=np.asarray(num_proposals, np.int32),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            faults=tuple(faults),
        )

    # looking

    def ids(self, request_id: int) -> list[int]:
        return [t for o in self.outputs if o.request_id == request_id for t in o.token_ids]

    def last(self, request_id: int) -> RequestOutput:
        return [o for o in self.outputs if o.request_id == request_id][-1]

    def text(self, request_id: int) -> bytes:
        """Its final text."""
        text = b"".join(BYTES[t] for t in self.ids(request_id))
        return text[: len(text) - self.last(request_id).cut_bytes]

    def reasons(self, request_id: int) -> list[str]:
        return [d.reason.value for d in self.scheduler.decisions.of_request(request_id)]

    def held_blocks(self) -> int:
        stats = self.kv.stats()
        return stats.held + stats.limbo + stats.reserved


def rows_of(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(row, start, count) of each row."""
    return list(zip(plan.row.tolist(), plan.start.tolist(), plan.count.tolist(), strict=True))


def admitted(plan: StepPlan) -> list[int]:
    return [a.request_id for a in plan.admits]
