"""A question in, a plan out: the search, the walk, the final ledger and what drafting would bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.planner.ledger import RankMemory, rank_memory
from paceline.planner.question import Question
from paceline.planner.search import Candidate, Search, Verify, bounds, layout_steps, rank, search
from paceline.planner.speculation import DraftChoice, choose_drafts
from paceline.planner.steady import Replica
from paceline.planner.verify import in_words, is_ahead
from paceline.planner.walk import Step, walk

SPREAD = 2.0  # standard deviations of a Poisson count that rows are given beyond their mean


@dataclass(frozen=True)
class Plan:
    """What was found. `chosen` None: nothing fits, and each candidate of the search says why."""

    question: Question
    search: Search
    steps: tuple[Step, ...]
    chosen: Candidate | None = None
    memory: RankMemory | None = None  # with the rows that were chosen, not with all that would fit
    frontier: tuple[tuple[float, float, float, float], ...] = ()  # (good requests/s, TPOT ms, TTFT p95 s, attainment)
    drafts: tuple[DraftChoice, ...] = ()  # by number of rows
    notes: tuple[str, ...] = ()


def make_plan(
    question: Question,
    *,
    acceptance: Sequence[float] | None = None,
    draft_ms: float = 0.0,
    verify: Verify | None = None,
    num_verified: int = 3,
) -> Plan:
    """Search, choose and explain. `acceptance`: tokens per step for 1, 2, ... drafts, as measured; `draft_ms`: one step
    of the drafter. `verify`: who judges the best `num_verified` candidates again. Raises ConfigError for a question
    that no layout could answer."""
    found = search(question, verify=verify, num_verified=num_verified)
    steps = walk(question, found)
    chosen = found.chosen
    if chosen is None:
        return Plan(question=question, search=found, steps=steps)
    chosen = bounds(question, chosen)
    memory = rank_memory(question, chosen.layout, chunk=chosen.chunk, rows=rows_to_run(chosen))
    return Plan(
        question=question,
        search=found,
        steps=steps,
        chosen=chosen,
        memory=memory,
        frontier=frontier(question, chosen),
        drafts=() if acceptance is None else drafts(question, chosen, acceptance, draft_ms),
        notes=(*_notes(question, chosen, memory), *_words_on_order(question, found, chosen)),
    )


def rows_to_run(candidate: Candidate) -> int:
    """Rows a replica is given: what its capacity runs on average and two spreads more, where they fit; in eights."""
    assert candidate.capacity is not None
    assert candidate.memory is not None
    busy = candidate.capacity.rows + 1
    rows = math.ceil((busy + SPREAD * math.sqrt(busy)) / 8) * 8
    return max(1, min(rows, candidate.memory.seats))


def frontier(question: Question, candidate: Candidate) -> tuple[tuple[float, float, float, float], ...]:
    """The chosen layout at rising load: what more requests cost each of them. [(good/s, TPOT ms, TTFT p95 s, share)]"""
    assert candidate.memory is not None
    assert candidate.capacity is not None
    replica = Replica(
        layout_steps(question, candidate.layout),
        question.traffic,
        question.slo,
        seats=candidate.memory.seats,
        chunk=candidate.chunk,
    )
    points = []
    for part in (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5):
        found = replica.at_rows(part * candidate.capacity.rows)
        if found is not None and part * candidate.capacity.rows <= candidate.memory.seats:
            count = candidate.layout.replicas
            points.append((count * found.goodput_rps, found.step_ms, found.ttft_p95_s, found.attainment))
    return tuple(points)


def drafts(
    question: Question, candidate: Candidate, acceptance: Sequence[float], draft_ms: float
) -> tuple[DraftChoice, ...]:
    """The best number of drafts for one row alone and for the rows of the plan: the two are always judged apart."""
    steps = layout_steps(question, candidate.layout)
    context = round(question.traffic.mean_context)
    assert candidate.operating is not None
    counts = dict.fromkeys((1, max(1, round(candidate.operating.rows + 1))))

    def best(rows: int) -> DraftChoice:
        return choose_drafts(rows, acceptance, lambda n: steps.drafted_ms(n, rows, context), draft_ms=draft_ms)

    return tuple(best(rows) for rows in counts)


def _notes(question: Question, chosen: Candidate, memory: RankMemory) -> tuple[str, ...]:
    traffic, card = question.traffic, question.card
    notes = []
    if question.max_model_len < question.spec.max_model_len:
        notes.append(
            f"max_model_len is {question.max_model_len}, the longest request of this traffic; the model's own "
            f"{question.spec.max_model_len} would cost workspace for lengths nobody sends"
        )
    if (asked := traffic.rate_rps) is not None and chosen.capacity_rps < asked * question.slo.share:
        notes.append(
            f"{asked:g} requests/s were asked for; {chosen.capacity_rps:.3g} good ones are the most that fits, if the "
            f"rest is refused at once"
        )
    fit = memory.fit
    notes.append(
        f"KV for {fit.num_seqs} running sequences of this traffic at {question.overflow_risk:.0%} risk of preemption; "
        f"{fit.by_longest} if each were the longest"
    )
    if card.assumed:
        notes.append(f"assumed of {card.spec.name}: {card.assumed}")
    if chosen.layout.degrees.ep > 1:
        notes.append(f"assumed: the busiest expert rank has {question.expert_imbalance:g} times the mean load")
    return tuple(notes)


def _words_on_order(question: Question, found: Search, chosen: Candidate) -> list[str]:
    """What simulation changed about the best, or does not confirm."""
    if chosen.simulated is None:
        return []
    words = [
        f"{other.layout} was predicted to be better than {chosen.layout}; simulated, {in_words(other.simulated)}"
        for other in found.candidates
        if other.simulated is not None
        and rank(question, other) < rank(question, chosen)
        and is_ahead(question, chosen, other)
    ]
    if chosen.simulated.met and len(chosen.simulated.loads) > 1:
        first, carried = chosen.simulated.first, chosen.simulated.carried
        words.append(
            f"the simulator confirms {carried.rate_rps:.3g} requests/s: at {first.rate_rps:.3g}, "
            f"{first.attainment:.0%} are in time where {first.expected.attainment:.0%} were predicted"
        )
    elif not chosen.simulated.met:
        words.append(f"the simulator does not confirm {chosen.layout}: {in_words(chosen.simulated)}")
    return words
