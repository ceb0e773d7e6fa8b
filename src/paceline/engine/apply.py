"""What a step's result does to requests: the counterpart of the plan, row by row, in the plan's order.

For each row: is it still the same residency (epoch)? Then its positions are computed, its accepted tokens are appended
one by one under the stop rules, drafts that were not accepted are taken back (planned = computed), full blocks become
findable, and what is final is handed out. A fault ends its own request and nothing else.
"""

from __future__ import annotations

from paceline.contracts.decision import Reason
from paceline.contracts.request import FinishReason, TokenLogprob
from paceline.contracts.step import StepResult
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.plan_columns import Flight
from paceline.engine.request_state import RequestState


class Applier:
    __slots__ = ("_life",)

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    def apply(self, flight: Flight, result: StepResult, now: float) -> None:
        """`flight` is the oldest plan in flight, `result` is its result."""
        assert flight.step == result.step, f"result of step {result.step}, expected {flight.step}"
        life = self._life
        life.applied_step = flight.step
        faults = {fault.row: f"{fault.code}: {fault.message}" for fault in result.faults}
        drawn_rows = result.row.tolist()
        num_tokens = result.num_tokens.tolist()
        tokens = result.tokens.tolist()
        plain = not (faults or result.logprobs or result.prompt_logprobs or len(result.drafts))
        at = 0  # next token
        entry = 0  # next entry of the result's rows
        num_entries = len(drawn_rows)
        draft_at = 0
        for index, state in enumerate(flight.states):
            row = flight.rows[index]
            got = 0
            if entry < num_entries and drawn_rows[entry] == row:
                got = num_tokens[entry]
                entry += 1
            begin, at = at, at + got
            if not plain and len(result.num_drafts) and got:
                num = int(result.num_drafts[entry - 1])
                proposed, draft_at = result.drafts[draft_at : draft_at + num], draft_at + num
            else:
                proposed = None
            if state.epoch != flight.epochs[index]:
                continue  # its residency was lost meanwhile; the waste was counted then
            if not plain:
                if row in faults:
                    life.finish(state, FinishReason.ERROR, Reason.FAULT, now, error=faults[row])
                    continue
                if row in result.prompt_logprobs:
                    _keep_prompt_logprobs(state, result.prompt_logprobs[row])
            if not flight.samples[index]:
                state.computed += flight.counts[index]
                self.commit(state, now)
                continue
            assert got >= 1, f"step {flight.step} drew nothing for row {row}"
            num_drafts = flight.num_drafts[index]
            rejected = num_drafts + 1 - got
            state.pending -= 1 + num_drafts
            state.computed += flight.counts[index] - rejected
            if rejected:
                state.planned -= rejected
                state.computed_tokens += rejected
            if proposed is not None:
                state.drafts = proposed.tolist()
            simple = state.rules.matcher is None and not (state.wants_logprobs or state.has_grammar)
            if got == 1 and simple and not rejected:
                self.one_token(state, tokens[begin], flight.counts[index], now)
                continue
            if rejected:
                self._waste(state, rejected)
            self._accept(state, tokens[begin:at], result.logprobs.get(row, ()), result.grammar_ends.get(row, 0), now)
        life.step_done(flight.step, now)

    def apply_unwritten(self, flight: Flight, now: float, tell: bool) -> None:
        """The same for rows whose answers are known beforehand, of a plan that was not written."""
        life = self._life
        life.applied_step = flight.step
        token_times, num_quiet, named = life.token_times, 0, life.kv.names_blocks
        columns = zip(flight.states, flight.epochs, flight.counts, flight.samples, strict=True)
        for state, epoch, count, sample in columns:
            if state.epoch != epoch:
                continue
            state.computed = computed = state.computed + count
            if not sample:
                self.commit(state, now)
                continue
            state.pending -= 1
            told = state.output_tokens
            looks = tell or not told or computed + 1 >= state.limit or state.stop_ids or count > 1
            if looks or (named and state.kv is not None and computed >= state.kv.next_commit):
                assert state.answer is not None, "only a written plan can say what to draw"
                self.one_token(state, state.answer[state.known - state.num_prompt], count, now, tell)
            else:  # what that does where there is nothing to look at, `Lifecycle.count` without a call
                state.known += 1
                state.output_tokens = told = told + 1
                num_quiet += 1
                if token_times:
                    state.timeline.chunks.append((now, 1))
                    state.listed_tokens = told
                else:
                    state.last_token_s = now
        life.output_tokens += num_quiet
        life.step_done(flight.step, now)

    def _waste(self, state: RequestState, count: int) -> None:
        state.wasted_tokens += count
        self._life.wasted_tokens += count

    def one_token(self, state: RequestState, token: int, count: int, now: float, tell: bool = True) -> None:
        """The hot path of `_accept`: one token, no stop strings, no logprobs, no grammar. `tell` False: nobody wants to
        hear of it unless it is the request's first or last."""
        if state.answer is None:
            state.output.append(token)
        state.known = known = state.known + 1
        kv = state.kv
        assert kv is not None
        if count > 1 or state.computed >= kv.next_commit:
            self.commit(state, now)
        if token in state.stop_ids or known >= state.limit:
            finish = state.rules.check(token, None, known - state.num_prompt - 1, known)
            if finish is not None:
                self._end(state, finish, [token], None, now)
                return
        if tell or not state.output_tokens:
            if state.listed_tokens < state.output_tokens:
                self._life.list_rest(state)
            self._life.emit(state, [token], None, now)
        else:
            self._life.count(state, 1, now)

    def _accept(
        self,
        state: RequestState,
        tokens: list[int],
        logprobs: tuple[TokenLogprob, ...],
        grammar_end: int,
        now: float,
    ) -> None:
        """Append accepted drafts and the draw, up to the first that ends the request. Its grammar is complete with
        token number `grammar_end`, counted from 1; 0: with none of them."""
        assert state.answer is None
        rules = state.rules
        finish: FinishReason | None = None
        taken = 0
        for token in tokens:
            logprob = logprobs[taken] if logprobs else None
            index = len(state.output)
            state.output.append(token)
            state.known += 1
            taken += 1
            finish = rules.check(token, logprob, index, state.known, complete=taken == grammar_end)
            if finish is not None:
                break
        past = len(tokens) - taken
        if past:  # drawn beyond the end: as if they had been rejected
            state.computed -= past
            state.planned -= past
            state.computed_tokens += past
            self._waste(state, past)
        self.commit(state, now)
        if rules.matcher is None:
            ids, kept = tokens[:taken], list(logprobs[:taken])
            hold_bytes = 0
        else:
            ids, kept, hold_bytes = rules.matcher.take(everything=finish is not None)
        shown = kept if state.wants_logprobs else None
        if finish is not None:
            if rules.matcher is not None and rules.matcher.num_dropped:
                self._waste(state, rules.matcher.num_dropped)
            self._end(state, finish, ids, shown, now)
        elif ids or hold_bytes != state.hold_bytes:
            self._life.emit(state, ids, shown, now).hold_bytes = hold_bytes
            state.hold_bytes = hold_bytes

    def _end(
        self, state: RequestState, finish: FinishReason, ids: list[int], logprobs: list[TokenLogprob] | None, now: float
    ) -> None:
        stop = state.rules.stop_reason
        if finish is FinishReason.LENGTH:
            reason = Reason.LENGTH
        elif stop is None:
            reason = Reason.GRAMMAR_END
        else:
            reason = Reason.STOP_STRING if isinstance(stop, str) else Reason.STOP_TOKEN
        self._life.finish(state, finish, reason, now, token_ids=ids, logprobs=logprobs)

    def commit(self, state: RequestState, now: float, num_computed: int = 0) -> None:
        """Blocks up to `computed` (or fewer positions, if said) are final: the cache may show them, windows may drop
        what they no longer see."""
        kv, keys, num_computed = state.kv, state.keys, num_computed or state.computed
        assert kv is not None
        assert keys is not None
        if state.known >= keys.next_known:
            state.extend_keys()
        self._life.kv.commit(kv, keys, num_computed)
        if kv.num_blocks != state.kv_blocks:
            state.account_blocks(now)
        if state.has_followers and num_computed >= state.num_prompt - 1:
            self._life.prompt_computed(state)


def _keep_prompt_logprobs(state: RequestState, entries: tuple[TokenLogprob, ...]) -> None:
    """Entry i of a chunk is about the token after its position i; those past the prompt are of no interest."""
    if state.prompt_logprobs is not None:
        missing = state.num_prompt - len(state.prompt_logprobs)
        state.prompt_logprobs.extend(entries[:missing])
