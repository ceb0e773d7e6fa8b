"""One step on one device: plan, tensors, forward pass, logits where they are needed, draws, result.

Logits exist only for positions that draw (a row's last, and one per draft) and, a slice at a time, for prompt positions
whose log-probabilities somebody asked for. Written for any torch device; not yet run on a GPU.

Shapes: T positions, R rows, S draws, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from paceline.contracts.request import TokenLogprob
from paceline.contracts.step import Logits, RowFault, SampleInputs, StepPlan, StepResult
from paceline.errors import UnsupportedError
from paceline.runtime.forward_context import ForwardContext, forward_context
from paceline.runtime.input_batch import InputBatch, StepInputs
from paceline.runtime.logit_rules import keep_allowed, masked_draws, masks_by_row
from paceline.runtime.logprobs import report
from paceline.runtime.sampler import best, draw

_NO_DRAWS, _NO_LOGITS = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
PROMPT_SLICE = 1 << 22  # logits computed at once for prompt log-probabilities


class Model(Protocol):
    """What a runner needs of a model."""

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [T, hidden] of input_ids [T] at positions [T], both int64."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, V] float32 of hidden [S, hidden]."""
        ...


class Cache(Protocol):
    def copy_blocks(self, src: Sequence[int], dst: Sequence[int]) -> None: ...


@dataclass(slots=True)
class Forward:
    """A forward pass that waits for its draws."""

    plan: StepPlan
    inputs: StepInputs | None
    logits: torch.Tensor | None = None  # [S, V] float32
    prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    faults: dict[int, RowFault] = field(default_factory=dict)  # by row


class ModelRunner:
    """Runs plans in order. `watch`, if set, sees (plan, inputs, raw logits) of every step: for tests and tools."""

    def __init__(self, model: Model, cache: Cache, rows: InputBatch, *, vocab_size: int) -> None:
        self.model = model
        self.cache = cache
        self.rows = rows
        self.vocab_size = vocab_size
        self.watch: Callable[[StepPlan, StepInputs, torch.Tensor], None] | None = None

    def prepare(self, plan: StepPlan) -> StepInputs | None:
        """Apply the plan's columns and build its tensors; None for a plan without rows."""
        if Logits.POOL in plan.logits.tolist():
            raise UnsupportedError(
                "pooled hidden states are not available", seen="logits=POOL", fix="ask for generated text"
            )
        self.rows.apply(plan)
        return self.rows.build(plan) if plan.num_rows else None

    @torch.inference_mode()
    def forward(self, plan: StepPlan, inputs: StepInputs | None) -> Forward:
        """Copies and the forward pass, up to the draw."""
        if len(plan.copy_src):
            self.cache.copy_blocks(plan.copy_src.tolist(), plan.copy_dst.tolist())
        if inputs is None:
            return Forward(plan, None)
        with forward_context(ForwardContext(inputs.attention)):
            hidden = self.model(inputs.input_ids, inputs.positions)
        step = Forward(plan, inputs)
        for at, kind in enumerate(plan.logits.tolist()):
            if kind == Logits.ALL:
                self._prompt_logprobs(step, at, hidden)
        if len(inputs.draw_at):
            everything = len(inputs.draw_at) == len(hidden)
            step.logits = self.model.logits(hidden if everything else hidden[self.rows.to_device(inputs.draw_at)])
            if self.watch is not None:
                self.watch(plan, inputs, step.logits)
        return step

    @torch.inference_mode()
    def sample(self, step: Forward, masks: SampleInputs | None) -> StepResult:
        """The draws. `device_ms` is left to the executor."""
        plan, inputs, logits = step.plan, step.inputs, step.logits
        if inputs is None or logits is None:
            return _result(step, np.empty(0, np.int32), np.empty(0, np.int32), [], {})
        draw_rows = plan.row[inputs.sampling]
        if self.rows.plain[draw_rows].all():
            return self._sample_plain(step, draw_rows, inputs, logits)
        asked = [
            at for at, row in enumerate(inputs.draw_row.tolist()) if self.rows.admits[row].sampling.logprobs is not None
        ]
        raw = logits[asked] if asked else logits[:0]
        ruled, before = self._apply_rules(plan, inputs, logits, masks)
        ids, largest = draw(logits, self.rows.draws(inputs))
        empty = ~np.isfinite(largest.numpy(force=True))
        # rules hide what was not a number, and may leave nothing; without any, the draw's own look is enough
        bad = empty.copy()
        bad[ruled] = ~np.isfinite(before)
        tokens = self._accept(step, ids.tolist(), bad.tolist(), empty.tolist())
        logprobs = self._logprobs(inputs, raw, asked, tokens)
        flat = [token for kept in tokens for token in kept]
        for row, kept in zip(draw_rows.tolist(), tokens, strict=True):
            self.rows.append(row, kept)
        return _result(step, draw_rows, np.asarray([len(kept) for kept in tokens], dtype=np.int32), flat, logprobs)

    def _sample_plain(
        self, step: Forward, draw_rows: np.ndarray, inputs: StepInputs, logits: torch.Tensor
    ) -> StepResult:
        """Greedy rows that ask for nothing else: one arg-max for all of them."""
        largest, ids = best(logits)
        bad = (~torch.isfinite(largest)).cpu().numpy()
        drawn = ids.to(torch.int32).cpu().numpy()
        if not bad.any() and len(drawn) == len(draw_rows):
            self.rows.append_one_each(draw_rows, drawn)
            return _result(step, draw_rows, np.ones(len(drawn), dtype=np.int32), drawn, {})
        tokens = self._accept(step, drawn.tolist(), bad.tolist(), bad.tolist())
        for row, kept in zip(draw_rows.tolist(), tokens, strict=True):
            self.rows.append(row, kept)
        counts = np.asarray([len(kept) for kept in tokens], dtype=np.int32)
        return _result(step, draw_rows, counts, [token for kept in tokens for token in kept], {})

    def _apply_rules(
        self, plan: StepPlan, inputs: StepInputs, logits: torch.Tensor, masks: SampleInputs | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Change logits [S, V] as rules and masks say. Returns which draws that concerns, and their largest logits of
        before."""
        if not self.rows.rules:
            if masks is None:
                return _NO_DRAWS, _NO_LOGITS
            draws = masked_draws(masks.mask_row, inputs.draw_row)
            return draws, keep_allowed(logits, draws, masks.masks).numpy(force=True)
        first_of = masks_by_row(masks)
        ruled: list[int] = []
        before: list[float] = []
        for row, drafts, at in self._draw_groups(plan, inputs):
            rules, first = self.rows.rules.get(row), first_of.get(row)
            if rules is None and first is None:
                continue
            draws = np.arange(at, at + len(drafts) + 1)
            ruled += draws.tolist()
            if rules is None and masks is not None and first is not None:
                before += keep_allowed(logits, draws, masks.masks[first : first + len(draws)]).tolist()
            elif rules is not None:
                before += best(logits[at : at + len(draws)])[0].tolist()
                position = int(inputs.draw_position[at])
                for j in range(len(draws)):
                    mask = None if masks is None or first is None else masks.masks[first + j]
                    rules.apply(logits[at + j], position + j, drafts[:j], mask)
        return np.asarray(ruled, dtype=np.int64), np.asarray(before, dtype=np.float32)

    def _draw_groups(self, plan: StepPlan, inputs: StepInputs) -> list[tuple[int, list[int], int]]:
        """Per row that draws: the row, its drafts, the index of its first draw."""
        draft_ends = np.cumsum(plan.num_draft)[inputs.sampling].tolist()
        counts = plan.num_draft[inputs.sampling].tolist()
        drafts = plan.draft_ids.tolist()
        groups, at = [], 0
        for row, end, count in zip(plan.row[inputs.sampling].tolist(), draft_ends, counts, strict=True):
            groups.append((row, drafts[end - count : end], at))
            at += count + 1
        return groups

    def _accept(self, step: Forward, ids: list[int], bad: list[bool], empty: list[bool]) -> list[list[int]]:
        """Tokens of each row that draws: drafts are kept while they equal the draw at their position, then the draw.

        A row whose logits are not numbers, where it matters, keeps nothing and becomes a fault.
        """
        assert step.inputs is not None
        kept: list[list[int]] = []
        for row, drafts, at in self._draw_groups(step.plan, step.inputs):
            tokens: list[int] = []
            for j in range(len(drafts) + 1):
                if bad[at + j] or empty[at + j]:
                    tokens = []
                    code = "nan" if bad[at + j] else "nothing_allowed"
                    text = "logits are not finite" if bad[at + j] else "no token is allowed at this position"
                    step.faults[row] = RowFault(row=row, code=code, message=text)
                    break
                tokens.append(ids[at + j])
                if j < len(drafts) and drafts[j] != ids[at + j]:
                    break
            kept.append([] if row in step.faults else tokens)
        return kept

    def _logprobs(
        self, inputs: StepInputs, raw: torch.Tensor, asked: list[int], tokens: list[list[int]]
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Log-probabilities of the tokens of rows that asked; `raw` [A, V] holds the logits of draws `asked`."""
        if not asked:
            return {}
        place = {at: index for index, at in enumerate(asked)}
        take: list[int] = []
        wanted: list[int] = []
        owners: list[int] = []
        at = 0
        for index, kept in enumerate(tokens):
            row = int(inputs.draw_row[at])
            if at in place:
                take += [place[at + j] for j in range(len(kept))]
                wanted += kept
                owners += [row] * len(kept)
            at += int(inputs.num_draws[index])
        params = [self.rows.admits[row].sampling for row in owners]
        entries = report(
            raw if len(take) == len(raw) else raw[take],
            wanted,
            [p.logprobs or 0 for p in params],
            [p.logprob_token_ids for p in params],
        )
        found: dict[int, list[TokenLogprob]] = {}
        for row, entry in zip(owners, entries, strict=True):
            found.setdefault(row, []).append(entry)
        return {row: tuple(list_) for row, list_ in found.items()}

    def _prompt_logprobs(self, step: Forward, at: int, hidden: torch.Tensor) -> None:
        """Entry i: the prompt token after position start + i, as far as there is one."""
        assert step.inputs is not None
        row, start = int(step.plan.row[at]), int(step.plan.start[at])
        begin, end = int(step.inputs.first[at]), int(step.inputs.first[at + 1])
        admit = self.rows.admits[row]
        end = min(end, begin + admit.num_prompt - 1 - start)
        targets = self.rows.tokens[row, start + 1 : start + 1 + end - begin].tolist()
        size = max(1, PROMPT_SLICE // self.vocab_size)
        entries: list[TokenLogprob] = []
        for low in range(begin, end, size):
            high = min(end, low + size)
            logits = self.model.logits(hidden[low:high])
            if not bool(torch.isfinite(best(logits)[0]).all()):
                step.faults[row] = RowFault(row=row, code="nan", message="logits are not finite")
                return
            n = high - low
            count = admit.sampling.prompt_logprobs or 0
            extra = [admit.sampling.logprob_token_ids] * n
            entries += report(logits, targets[low - begin : high - begin], [count] * n, extra)
        step.prompt_logprobs[row] = tuple(entries)


def _result(
    step: Forward,
    rows: np.ndarray,
    counts: np.ndarray,
    tokens: Sequence[int] | np.ndarray,
    logprobs: dict[int, tuple[TokenLogprob, ...]],
) -> StepResult:
    return StepResult(
        step=step.plan.step,
        row=rows,
        num_tokens=counts,
        tokens=np.asarray(tokens, dtype=np.int32),
        num_drafts=np.zeros(len(rows), dtype=np.int32),
        logprobs=logprobs,
        prompt_logprobs=step.prompt_logprobs,
        faults=tuple(step.faults.values()),
    )
