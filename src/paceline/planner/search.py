"""Every layout judged, the best one chosen, the others with the reason they were not.

For each layout and chunk size: does the fullest rank's memory hold, how many rows may run, what load do these carry
within the targets. The chunk that ranks first stands for its layout. With a rate to carry, the fewest devices that
carry it win, then what is left when one of them fails, then room to spare; without one, the most good requests per
second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import msgspec

from paceline.cost.estimate import Tier
from paceline.cost.memory import format_bytes
from paceline.cost.shards import rank_share
from paceline.errors import CapacityError, UnsupportedError
from paceline.planner.layout import Layout, layouts
from paceline.planner.ledger import RankMemory, fullest_share, rank_memory
from paceline.planner.question import Question
from paceline.planner.steady import Operating, Replica
from paceline.planner.step import LayoutSteps, layout_prior
from paceline.planner.verify import Simulated, in_simulated_order

CHUNKS = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (32, 64, 128, 256, 512)}
MAX_CHUNK_SHARE = 4  # a chunk is at most so many times the longest prompt


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One layout as judged. `rejected` says why not; then what comes after it may be missing."""

    layout: Layout
    rejected: str = ""
    chunk: int = 0
    memory: RankMemory | None = None
    capacity: Operating | None = None  # of one replica, at the most it carries
    operating: Operating | None = None  # of one replica: at its share of the asked rate, else at capacity
    goodput_rps: float = 0.0  # of all replicas: good requests per second at most, or of the asked rate
    capacity_rps: float = 0.0  # most good requests per second of all replicas
    goodput_after_loss_rps: float = 0.0  # the same as goodput_rps with one device gone, and its replica with it
    low_rps: float = 0.0  # capacity_rps with every step as long as the cost model's interval allows
    high_rps: float = 0.0
    tier: Tier = "first principles"
    cost_per_million: float | None = None  # good output tokens, in the currency of the price
    num_devices: int = 0
    simulated: Simulated | None = None  # a second opinion, for the best few

    @property
    def fits(self) -> bool:
        return not self.rejected


Verify = Callable[[Question, Sequence[Candidate]], Sequence[Candidate]]
"""A second opinion on the best candidates, best first: gives them back, each with what was `simulated`, and may add
others that it came upon."""


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """All that was judged, best first, and the first of them if any fits."""

    candidates: tuple[Candidate, ...]
    num_judged: int  # layouts times chunk sizes

    @property
    def chosen(self) -> Candidate | None:
        return next((c for c in self.candidates if c.fits), None)

    def layout(self, name: str) -> Candidate | None:
        """By the words of `Layout`."""
        return next((c for c in self.candidates if str(c.layout) == name), None)


def search(question: Question, *, verify: Verify | None = None, num_verified: int = 3) -> Search:
    """Judge every layout of the fleet. `verify` (a simulator, say) judges the best `num_verified` again, and where it
    clearly ranks them otherwise its order wins."""
    question.check()
    found: list[Candidate] = []
    judged = 0
    for layout in layouts(question.spec, question.fleet):
        steps = cache(partial(layout_steps, question, layout))  # of all chunk sizes, and only if memory holds
        options = [judge(question, layout, chunk, steps) for chunk in chunk_sizes(question)]
        judged += len(options)
        found.append(min(options, key=partial(rank, question)))
    ranked = sorted(found, key=lambda c: rank(question, c))
    if verify is not None:
        best = [c for c in ranked if c.fits][:num_verified]
        again = sorted(verify(question, best), key=lambda c: rank(question, c))
        again = in_simulated_order(question, again)
        ranked = [*again, *(c for c in ranked if c not in best)]
    return Search(candidates=tuple(ranked), num_judged=judged)


def rank(question: Question, candidate: Candidate) -> tuple[float, ...]:
    """Smaller is better."""
    if not candidate.fits:
        return (2.0, -float(candidate.layout.degrees.num_ranks))
    asked = question.traffic.rate_rps
    if asked is None:
        return (0.0, -candidate.capacity_rps, -candidate.goodput_after_loss_rps)
    carries = candidate.capacity_rps >= asked * question.slo.share
    if not carries:
        return (1.0, -candidate.capacity_rps)
    return (0.0, float(candidate.num_devices), -candidate.goodput_after_loss_rps, -candidate.capacity_rps)


def chunk_sizes(question: Question) -> list[int]:
    """Sizes worth a look: beyond the longest prompt a chunk only holds several."""
    sizes = CHUNKS[question.card.spec.kind]
    longest = MAX_CHUNK_SHARE * float(question.traffic.input_tokens.max())
    return [size for size in sizes if size <= longest] or [sizes[0]]


def layout_steps(question: Question, layout: Layout) -> LayoutSteps:
    """Step times of a layout: measured ones where there are any and one device runs it, else the prior."""
    kept = question.kept
    if question.times is not None and layout.degrees.num_ranks == 1:
        return LayoutSteps(question.times)
    stored = kept.stored_bytes
    return layout_prior(
        question.spec,
        question.card,
        layout,
        per_node=question.fleet.per_node,
        weights=kept.weights,
        weight_bytes=rank_share(question.spec, weights=kept.weights).weight_bytes if stored is None else stored,
        dtype_bytes=kept.dtype_bytes,
        kv_dtype_bytes=kv_dtype_bytes(question),
        expert_imbalance=question.expert_imbalance,
    )


def kv_dtype_bytes(question: Question) -> float:
    """Bytes of a cached number, its part of a scale counted in."""
    kv = question.kept.kv
    return kv.element_bytes + kv.scale_bytes / question.spec.head_dim


def judge(question: Question, layout: Layout, chunk: int, make_steps: Callable[[], LayoutSteps]) -> Candidate:
    """One layout with one chunk size."""
    try:
        memory = rank_memory(question, layout, chunk=chunk)
    except UnsupportedError as error:
        return Candidate(layout=layout, chunk=chunk, rejected=error.message, num_devices=layout.num_devices)
    except CapacityError as error:
        weights = format_bytes(fullest_share(question, layout).weight_bytes)
        words = f"{error.message}: {weights} of weights, workspace, engine and margin; {error.seen}"
        return Candidate(layout=layout, chunk=chunk, rejected=words, num_devices=layout.num_devices)
    rejected = Candidate(layout=layout, chunk=chunk, memory=memory, num_devices=layout.num_devices)
    if memory.seats < 1:
        return msgspec.structs.replace(
            rejected, rejected=f"{memory.plan.num_blocks} KV blocks do not hold one longest request"
        )
    steps = make_steps()
    replica = Replica(steps, question.traffic, question.slo, seats=memory.seats, chunk=chunk)
    capacity = replica.capacity()
    if capacity is None or capacity.goodput_rps <= 0:
        return msgspec.structs.replace(rejected, rejected=_too_slow(question, replica))
    return _loaded(question, msgspec.structs.replace(rejected, capacity=capacity), replica, steps)


def one_more(question: Question, candidate: Candidate) -> Candidate | None:
    """The candidate with a replica more than the asked rate seemed to take; None: it has all there are."""
    assert candidate.memory is not None
    layout = candidate.layout
    room = question.fleet.num_devices // layout.degrees.num_ranks
    if question.traffic.rate_rps is None or layout.replicas >= room:
        return None
    steps = layout_steps(question, layout)
    replica = Replica(steps, question.traffic, question.slo, seats=candidate.memory.seats, chunk=candidate.chunk)
    whole = msgspec.structs.replace(candidate, layout=Layout(degrees=layout.degrees, replicas=room), simulated=None)
    return _loaded(question, whole, replica, steps, least=layout.replicas + 1)


def _loaded(
    question: Question, candidate: Candidate, replica: Replica, steps: LayoutSteps, *, least: int = 1
) -> Candidate:
    """The candidate at the asked rate, with as many replicas as that takes and at `least` so many, or at capacity with
    all of them."""
    capacity, layout, asked = candidate.capacity, candidate.layout, question.traffic.rate_rps
    assert capacity is not None
    operating = capacity
    if asked is not None:
        needed = max(least, math.ceil(asked / capacity.rate_rps - 1e-9))
        layout = msgspec.structs.replace(layout, replicas=min(layout.replicas, needed))
        operating = replica.at_rate(min(asked / layout.replicas, capacity.rate_rps)) or capacity
    all_rps = layout.replicas * capacity.goodput_rps
    goodput = all_rps if asked is None else min(asked, layout.replicas * operating.goodput_rps)
    after = (layout.replicas - 1) * capacity.goodput_rps
    estimate = steps.estimate(max(1, round(capacity.rows)), replica.context)
    price = question.price_per_hour
    tokens = goodput * question.traffic.mean_output
    return msgspec.structs.replace(
        candidate,
        layout=layout,
        num_devices=layout.num_devices,
        operating=operating,
        goodput_rps=goodput,
        capacity_rps=all_rps,
        goodput_after_loss_rps=after if asked is None else min(goodput, after),
        tier=estimate.tier,
        cost_per_million=None if price is None else layout.num_devices * price / (3600 * tokens) * 1e6,
    )


def bounds(question: Question, candidate: Candidate) -> Candidate:
    """`low_rps` and `high_rps` filled in: capacity with all steps as long, or as short, as the interval allows. One
    that reaches 0 bounds nothing from below; then steps are as many times as short as they may be long."""
    if not candidate.fits or candidate.memory is None or candidate.capacity is None:
        return candidate
    steps = layout_steps(question, candidate.layout)
    context = round(question.traffic.mean_context)
    estimate = steps.estimate(max(1, round(candidate.capacity.rows)), context)
    rates = []
    for times in (estimate.hi, estimate.lo or estimate.value**2 / estimate.hi):
        scaled = steps.scaled(times / estimate.value)
        seats = candidate.memory.seats
        found = Replica(scaled, question.traffic, question.slo, seats=seats, chunk=candidate.chunk).capacity()
        rates.append(0.0 if found is None else candidate.layout.replicas * found.goodput_rps)
    return msgspec.structs.replace(candidate, low_rps=rates[0], high_rps=rates[1])


def _too_slow(question: Question, replica: Replica) -> str:
    """Which target not even an empty replica meets."""
    alone = replica.at_rows(0.0)
    slo = question.slo
    if alone is None:
        return "prompts alone take more steps than there are"
    if slo.tpot_s is not None and alone.tpot_s > slo.tpot_s:
        return f"TPOT is {1e3 * alone.tpot_s:.3g} ms with one row running; the target is {1e3 * slo.tpot_s:g} ms"
    if slo.ttft_s is not None and alone.ttft_met < slo.share:
        return (
            f"TTFT p95 is {alone.ttft_p95_s:.3g} s with nobody else there, {alone.ttft_met:.0%} within "
            f"{slo.ttft_s:g} s; {slo.share:.0%} are asked for"
        )
    return (
        f"no load meets both targets for {slo.share:.0%} of requests (alone: TTFT p95 {alone.ttft_p95_s:.3g} s, TPOT "
        f"{1e3 * alone.tpot_s:.3g} ms)"
    )
