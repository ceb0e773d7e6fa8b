"""Masks for the rows that have a grammar, worked out in a thread of their own while the forward pass runs.

Like an executor it sees plans and results, never a request's state: a grammar's cursor belongs to the residency, is
built from the tokens of the admission (so a preempted request gets it back) and goes with the row.

    begin(plan)       before the plan is submitted: rows come and go, the thread starts on the masks
    inputs()          what the draw needs, when it is there
    advance(result)   the cursors follow; the result with the grammars that are complete, and with faults

One set of stop ids holds for grammar and sampler: where a text is whole, the row's own stop ids are allowed too, and
end-of-sequence ids that the request ignores are not, unless nothing else could follow.

A text whose grammar says so is led to its end when its limit is near: see `WayOut`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import numpy as np

from paceline.contracts.ports import Grammar
from paceline.contracts.step import GRAMMAR_TOO_COMPLEX, RowAdmit, RowFault, SampleInputs, StepPlan, StepResult

LED_WITHIN = 512  # tokens before the limit, from which on the way out is looked for
LED_TOKENS = 256  # at most, on the way out
# tokens kept free on top of it, for what one more may add to the way: a comma may begin an item that requires much
LED_MARGIN, LED_MARGIN_MOST = 8, 24
LED_MARGIN_SHARE = 10  # of the limit, one part in so many: a short answer is not led from its beginning
END = -1  # in a way out: whatever ends the text

MAX_MASK_S = 0.25  # of computing: a row whose masks take longer in one step is ended, since all others wait for it
RENEWAL_LASTS = 32  # tokens that a grammar of the row's own must serve at least
CONTRADICTED = "grammar_contradicted"  # code of a fault that is ours


@dataclass(slots=True)
class WayOut:
    """How a text comes to its end within its limit.

    Now and then the tokens that it still needs are counted, the more often the fewer there is room for beside them;
    when only a margin is left, those tokens are all that masks allow. A text that is whole and may go on, to another
    call say, does so only while there is room for all of what that brings. When it is looked and what is found follow
    from the tokens so far alone, so a row that was preempted goes the same way.
    """

    look_at: int  # tokens left at which to look next; 0: never
    margin: int = LED_MARGIN
    tokens: list[int] = field(default_factory=list)  # the way, once it is taken

    def look(self, grammar: Grammar, num_left: int) -> None:
        """`num_left` tokens may follow. Looks, if it is time to."""
        if self.tokens or num_left > LED_WITHIN:
            return
        whole = grammar.accepting
        if num_left > self.look_at and not whole:
            return
        most = min(num_left - 1, LED_TOKENS)
        way = grammar.way_out(most, further=whole)
        if way is None:
            spare = 0 if whole and most < LED_TOKENS else num_left
        else:
            spare = num_left - len(way) - 1 - self.margin
        if spare <= 0 and (whole or way is not None):
            self.tokens = [END] if whole or way is None else [*way, END]
        self.look_at = min(self.look_at, num_left - max(1, spare // 2))

    def follow(self, token: int) -> None:
        """The text goes on by `token`."""
        if self.tokens:
            self.tokens = self.tokens[1:] if self.tokens[0] == token else []

    def copy(self) -> WayOut:
        return WayOut(self.look_at, self.margin, self.tokens)


@dataclass(slots=True)
class Cursor:
    """Where one row is in its grammar.

    Clones of a grammar share the states of its lexer and the limits on them, so a limit may be met by the texts of
    others. What the library says from then on is wrong, and not always called an error. So a row in trouble goes on
    with a grammar that is compiled anew and its own; if there is trouble with that as well, or soon, it is at fault.
    """

    grammar: Grammar
    anew: Callable[[], Grammar]  # the same, compiled once more
    tokens: list[int]  # of the text so far; those of an earlier residency or engine were drawn under this grammar too
    stop_ids: frozenset[int]
    stop_words: np.ndarray  # the same as a mask
    eos_words: np.ndarray  # ids that end a sequence, as a mask
    text_words: np.ndarray  # all others
    limit: int | None = None  # tokens the text may have
    num_accepted: int = 0  # of the tokens, by `grammar`
    renewed_at: int | None = None  # number of tokens then
    fault: str = ""
    contradicted: bool = False  # the fault is a token that one part of the library allows and another does not
    way: WayOut = field(init=False)

    def __post_init__(self) -> None:
        self._start_again()

    def _start_again(self) -> None:
        """At the beginning of the text."""
        self.num_accepted = 0
        led = self.limit is not None and self.grammar.finishes
        share = (self.limit or 0) // LED_MARGIN_SHARE
        self.way = WayOut(LED_WITHIN if led else 0, max(LED_MARGIN, min(LED_MARGIN_MOST, share)))

    def catch_up(self) -> None:
        """Accept what came before."""
        for token in self.tokens[self.num_accepted :]:
            self._look(self.way, self.num_accepted)
            if not self.ends_with(token) and not self.grammar.accept(token):
                self._contradict(f"token {token} of its own output is not legal in its grammar")
                return
            self.way.follow(token)
            self.num_accepted += 1

    def take(self, token: int) -> bool:
        """Go on by a token that was drawn. True: the text is complete with it."""
        before = len(self.tokens)
        ends = self._take(token)
        trouble = self.trouble
        if trouble and self.renew():
            ends = self._take(token) if len(self.tokens) == before else self.grammar.done
            trouble = self.trouble
        self.fault = trouble
        return ends and not trouble

    def _take(self, token: int) -> bool:
        if self.ends_with(token):
            return True
        self._look(self.way, len(self.tokens))
        if self.grammar.accept(token):
            self.way.follow(token)
            self.tokens.append(token)
            self.num_accepted += 1
            return self.grammar.done
        self._contradict(f"token {token} was drawn although its mask forbids it")
        return False

    def _contradict(self, words: str) -> None:
        self.fault, self.contradicted = words, True

    @property
    def trouble(self) -> str:
        """Why the row cannot go on; empty if it can."""
        return self.grammar.error or self.fault

    def renew(self) -> bool:
        """Begin again with a grammar of its own. False: there is no use in that."""
        if self.renewed_at is not None and len(self.tokens) - self.renewed_at < RENEWAL_LASTS:
            return False
        self.renewed_at = len(self.tokens)
        self.fault, self.contradicted = "", False
        self.grammar = self.anew()
        self._start_again()
        self.catch_up()
        return not self.trouble

    def ends_with(self, token: int) -> bool:
        """Is `token`, next, the end of the text rather than a part of it?"""
        return token in self.stop_ids and self.grammar.accepting

    def _look(self, way: WayOut, num_tokens: int) -> None:
        if self.limit is not None and way.look_at and not self.trouble:
            way.look(self.grammar, self.limit - num_tokens)

    def fill(self, words: np.ndarray, led: list[int]) -> None:
        """The mask for the next token, [ceil(vocab / 32)] uint32. `led`: the tokens to come, where that is decided."""
        self.grammar.fill_mask(words)
        if led:
            words[:] = self._only(led[0], words)
            return
        words &= self.text_words
        whole = self.grammar.accepting
        if whole:
            words |= self.stop_words
        if _is_empty(words):
            if whole:
                words[:] = self.eos_words  # only an end is left, whether the request ignores it or not
            if not whole or _is_empty(words):
                self.fault = "no token of the vocabulary can follow"

    def _only(self, token: int, allowed: np.ndarray) -> np.ndarray:
        """A mask for one step of the way out."""
        if token == END:
            return self.stop_words if self.stop_words.any() else self.eos_words
        words = np.zeros_like(allowed)
        words[token // 32] = np.uint32(1 << token % 32)
        return words

    def fill_all(self, drafts: list[int], masks: np.ndarray) -> None:
        """Masks of the next token and of each one behind a draft, as if the drafts before it were right. What stands
        behind a draft that cannot be right is never drawn: anything goes there."""
        if drafts:
            masks.fill(0xFFFFFFFF)
        self.catch_up()
        taken, way = 0, self.way  # behind the first mask a copy of it: whether drafts come true is not known
        for at in range(len(masks)):
            if self.trouble:
                return
            self._look(way, len(self.tokens) + at)
            self.fill(masks[at], way.tokens)
            if at == len(drafts):
                break
            draft = drafts[at]
            if not masks[at, draft // 32] >> np.uint32(draft % 32) & 1 or self.ends_with(draft):
                break
            if not self.grammar.accept(draft):
                self._contradict(f"token {draft} is allowed, but not accepted")
            taken += 1
            way = way.copy()
            way.follow(draft)
        if taken and not self.trouble:
            self.grammar.rollback(taken)


@dataclass(slots=True)
class _Flight:
    """A plan's rows that draw under a grammar, and the masks on their way."""

    step: int
    rows: list[tuple[int, Cursor, list[int]]] = field(default_factory=list)  # (row, cursor, drafts)
    masks: Future[SampleInputs] | None = None


class RowGrammars:
    """See the module. Called by the thread that steps; `open` and `close_request` with the engine's lock held."""

    def __init__(self, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._num_words = -(-vocab_size // 32)
        self._eos_words = self._words(eos_token_ids)
        # by request id: at the beginning of the text, and how to get the same once more
        self._grammars: dict[int, tuple[Grammar, Callable[[], Grammar]]] = {}
        self._cursors: dict[int, Cursor] = {}  # by row
        self._flights: deque[_Flight] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def open(self, request_id: int, grammar: Grammar, anew: Callable[[], Grammar]) -> None:
        """A request with a grammar was taken in. `anew` compiles it once more, in any thread."""
        self._grammars[request_id] = grammar, anew

    def close_request(self, request_id: int) -> None:
        """It has ended. Unknown ids are ignored."""
        self._grammars.pop(request_id, None)

    def close(self) -> None:
        self._grammars.clear()
        self._cursors.clear()
        self._flights.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # --- the step

    def begin(self, plan: StepPlan) -> None:
        """Follow the plan's rows, and start on the masks of those that draw."""
        cursors = self._cursors
        if not cursors and not self._grammars:
            return
        for row in plan.releases.tolist():
            cursors.pop(row, None)
        for admit in plan.admits:
            cursors.pop(admit.row, None)
            if admit.grammar:
                cursors[admit.row] = self._cursor(admit)
        if not cursors:
            return
        flight = _Flight(plan.step)
        drafts, at = plan.draft_ids.tolist(), 0
        for row, num_draft, sample in zip(
            plan.row.tolist(), plan.num_draft.tolist(), plan.sample.tolist(), strict=True
        ):
            if sample and row in cursors:
                flight.rows.append((row, cursors[row], drafts[at : at + num_draft]))
            at += num_draft
        if not flight.rows:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-masks")
        flight.masks = self._thread.submit(self._masks, flight)
        self._flights.append(flight)

    def inputs(self, plan: StepPlan) -> SampleInputs | None:
        """The masks of the plan begun last; None when none of its rows needs one."""
        if not self._flights or self._flights[-1].step != plan.step:
            return None
        masks = self._flights[-1].masks
        assert masks is not None
        return masks.result()

    def advance(self, result: StepResult) -> StepResult:
        """Follow what was drawn. The result says then which grammars are complete, and which rows are at fault."""
        if not self._flights or self._flights[0].step != result.step:
            return result
        flight = self._flights.popleft()
        drawn = _tokens_by_row(result)
        ends: dict[int, int] = {}
        faults = list(result.faults)
        for row, cursor, _ in flight.rows:
            for count, token in enumerate(drawn.get(row, ()), start=1):
                if cursor.fault:
                    break
                if self._take(cursor, token):
                    ends[row] = count
                    break
            if cursor.fault:
                blamed = cursor.grammar.error or not cursor.contradicted
                code = GRAMMAR_TOO_COMPLEX if blamed else CONTRADICTED
                faults.append(RowFault(row=row, code=code, message=cursor.fault))
        if not ends and len(faults) == len(result.faults):
            return result
        return msgspec.structs.replace(result, grammar_ends=ends, faults=tuple(faults))

    # --- inside

    def _cursor(self, admit: RowAdmit) -> Cursor:
        stops = admit.stop_token_ids
        grammar, anew = self._grammars[admit.request_id]
        return Cursor(
            grammar=grammar.clone(),
            anew=anew,
            tokens=admit.token_ids[admit.num_prompt :].tolist(),
            stop_ids=frozenset(stops),
            stop_words=self._words(stops),
            eos_words=self._eos_words,
            text_words=~self._eos_words,
            limit=admit.sampling.max_tokens,
        )

    def _words(self, ids: Sequence[int]) -> np.ndarray:
        words = np.zeros(self._num_words, dtype=np.uint32)
        for token in ids:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words

    def _masks(self, flight: _Flight) -> SampleInputs:
        """In the thread: one mask for each draw, a row's draft positions one after another."""
        rows = [row for row, _, drafts in flight.rows for _ in range(len(drafts) + 1)]
        masks = np.empty((len(rows), self._num_words), dtype=np.uint32)
        at = 0
        for _, cursor, drafts in flight.rows:
            begin = time.thread_time()
            self._fill(cursor, drafts, masks[at : at + len(drafts) + 1])
            at += len(drafts) + 1
            took_s = time.thread_time() - begin
            if took_s > MAX_MASK_S and not cursor.fault:
                cursor.fault = f"its grammar took {took_s:.3f} s to say what may follow; at most {MAX_MASK_S:g} s"
        return SampleInputs(mask_row=np.asarray(rows, dtype=np.int32), masks=masks)

    @staticmethod
    def _fill(cursor: Cursor, drafts: list[int], masks: np.ndarray) -> None:
        try:
            cursor.fill_all(drafts, masks)
            if cursor.trouble and cursor.renew():
                cursor.fill_all(drafts, masks)
            cursor.fault = cursor.trouble
        except BaseException as error:  # a library's, panics among them: it ends this row and no other
            cursor.fault = f"{type(error).__name__}: {error}"
        if cursor.fault:
            masks.fill(0xFFFFFFFF)

    @staticmethod
    def _take(cursor: Cursor, token: int) -> bool:
        try:
            return cursor.take(token)
        except Exception as error:
            cursor.fault = f"{type(error).__name__}: {error}"
            return False


def _is_empty(words: np.ndarray) -> bool:
    """No bit is set. Bytes are compared up to the first that differs, near the front as a rule; `any` turns every word
    into a truth value first."""
    return words.tobytes() == bytes(words.nbytes)


def _tokens_by_row(result: StepResult) -> dict[int, list[int]]:
    tokens, at = result.tokens.tolist(), 0
    found: dict[int, list[int]] = {}
    for row, count in zip(result.row.tolist(), result.num_tokens.tolist(), strict=True):
        found[row] = tokens[at : at + count]
        at += count
    return found
