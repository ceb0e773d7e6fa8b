"""The best candidates of a plan, run in the simulator: the engine's own scheduler under the traffic that was asked.

One replica of a fleet is simulated with its share of the arrivals. Its rows, chunk and KV blocks are those of the
configuration that the plan would write, its prices are the planner's. So what differs from the prediction is what a
steady state cannot know: the order of requests, how they share chunks, preemption, a request's own TPOT.

The load has three parts, and only requests of the second are looked at:

    filling    a mean stay or more, at a rate raised so that as many rows run at its end as in the steady state
    looked at  `NUM_REQUESTS`, at the load in question
    behind     some of a mean stay more, so that the last of them do not run in an emptying engine

Everything is drawn from the seed: the same question gives the same verdict. Lengths are dealt like cards, each of the
distribution's quantiles as often as any other, so that candidates are compared under equal work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from paceline.assemble.core import scheduler_settings
from paceline.assemble.round_prices import RoundPrices
from paceline.config import resolve_knobs
from paceline.contracts.kv import KVLayout, plan_kv_groups
from paceline.contracts.ports import CostModel
from paceline.contracts.slo import Slo, percentile
from paceline.contracts.workload import PlannedRequest
from paceline.cost import StepCost
from paceline.lab.workload import Plan as Requests
from paceline.planner import Candidate, Question, Traffic, Verify
from paceline.planner.ledger import rank_memory
from paceline.planner.plan import rows_to_run
from paceline.planner.search import layout_steps, one_more
from paceline.planner.steady import Operating, Replica
from paceline.planner.step import LayoutSteps
from paceline.planner.traffic import Floats
from paceline.planner.verify import Load, Simulated, meets
from paceline.sim.fleet import ReplicaSpec, make_cluster
from paceline.sim.outcome import Ended
from paceline.sim.requests import by_class

Mode = Literal["fixed", "auto"]

NUM_REQUESTS = 300
MOST_ROWS = 1024  # on average
MOST_TOKENS = 350_000  # output tokens of all candidates together, some 4 us each: a look should be short
# Of the predicted capacity. Just below it first: at a capacity itself the share of good requests is at its limit by
# definition, and so steep that a few hundred requests cannot tell on which side it is
SHARES = (0.95, 0.8, 0.65)
FEWEST = 16  # requests of the filling, however empty the engine
BEHIND = 0.3  # of a mean stay
STAYS = (1.0, 1.5, 2.0)
BUSY = 0.9  # share of steps with a chunk that the filling may lead to


def verifier(*, seed: int = 0, bounded: bool = True, num_requests: int = NUM_REQUESTS) -> Verify:
    """What `planner.search` asks for a second opinion. A candidate that misses the asked rate gets one replica more,
    where there are devices for it, and is tried again. `bounded`: candidates with more than `MOST_ROWS` rows are left
    out, and so is what comes behind `MOST_TOKENS` once a candidate has met its targets."""

    def verify(question: Question, candidates: Sequence[Candidate]) -> list[Candidate]:
        found: list[Candidate] = []
        num_tokens, met = 0.0, False
        for first in candidates:
            candidate: Candidate | None = first
            while candidate is not None:
                trial = Trial(question, candidate, num_requests=num_requests)
                if bounded and (trial.rows > MOST_ROWS or (met and num_tokens + trial.num_tokens > MOST_TOKENS)):
                    found.append(candidate)
                    break
                result = trial.run(seed)
                num_tokens += trial.num_tokens * len(result.loads)
                met = met or result.met
                found.append(msgspec.structs.replace(candidate, simulated=result))
                candidate = None if result.met else one_more(question, candidate)
        return found

    return verify


class Trial:
    """A candidate that fits, ready to be simulated."""

    def __init__(self, question: Question, candidate: Candidate, *, num_requests: int = NUM_REQUESTS) -> None:
        assert candidate.operating is not None, "a candidate that fits has an operating point"
        assert candidate.memory is not None, "a candidate that fits has its memory"
        self.question, self.candidate, self.num_requests = question, candidate, num_requests
        self.operating = candidate.operating
        self._steps = layout_steps(question, candidate.layout)
        self._steady = Replica(
            self._steps, question.traffic, question.slo, seats=candidate.memory.seats, chunk=candidate.chunk
        )
        self._shares = SHARES if question.traffic.rate_rps is None else (1.0,)

    @property
    def rows(self) -> float:
        return self.operating.rows

    @property
    def num_tokens(self) -> float:
        """Output tokens of its first load."""
        return self._load(self._shares[0])[1].num_all * self.question.traffic.mean_output

    def run(self, seed: int) -> Simulated:
        """At the rate that is asked for, else at shares of its predicted capacity, from the first down until targets
        are met."""
        asked, prices = self.question.slo.share, prices_of(self.question, self.candidate)
        replica = replica_of(self.question, self.candidate)
        loads: list[Load] = []
        for share in self._shares:
            load = self._at(share, seed, replica, prices)
            if load.mode == "auto" and load.attainment < asked:
                fixed = self._at(share, seed, replica_of(self.question, self.candidate, "fixed"), prices)
                if fixed.attainment > load.attainment + load.noise(asked):
                    load = fixed  # a bet like any other: it is taken where it pays
            loads.append(load)
            if meets(load, asked):
                break
        return Simulated(loads=tuple(loads), share=asked, seed=seed)

    def _at(self, share: float, seed: int, replica: ReplicaSpec, prices: CostModel) -> Load:
        """What comes out at one load."""
        expected, load = self._load(share)
        slo = self.question.slo.slo
        ended = [e for e in simulate(replica, prices, load.requests(seed), slo) if load.looks_at(e.planned)]
        found = load_of(ended, slo, expected, self.candidate.layout.replicas)
        return msgspec.structs.replace(found, mode=replica.settings.scheduling_mode)

    def _load(self, share: float) -> tuple[Operating, FilledLoad]:
        """What is expected of one replica at a share of its rate, and the requests to find out."""
        expected = self._steady.at_rate(share * self.operating.rate_rps) or self.operating
        return expected, FilledLoad(
            traffic=self.question.traffic,
            rows=expected.rows,
            rate_rps=expected.rate_rps,
            prefill_share=expected.prefill_share,
            empty_step=empty_step_ms(self._steps, self._steady, expected.prefill_share) / expected.step_ms,
            num_requests=self.num_requests,
        )


def empty_step_ms(steps: LayoutSteps, steady: Replica, prefill_share: float) -> float:
    """A step with one row, where so many of them carry a chunk too."""
    mixed = steps.mixed_ms(1, steady.context, steady.chunk, round(steady.behind))
    return prefill_share * mixed + (1 - prefill_share) * steps.decode_ms(1, steady.context)


def replica_of(question: Question, candidate: Candidate, mode: Mode | None = None) -> ReplicaSpec:
    """One engine as the plan would start it: with the rows it is given, over all its expert groups and stages. `mode`:
    of scheduling; None: the profile's own."""
    layout, kept = candidate.layout, question.kept
    rows = rows_to_run(candidate)
    memory = rank_memory(question, layout, chunk=candidate.chunk, rows=rows)
    device = msgspec.structs.replace(question.card.spec, memory_bytes=question.memory.device_bytes)
    config = memory.config
    if mode is not None:
        scheduling = msgspec.structs.replace(config.scheduling, scheduling_mode=mode)
        config = msgspec.structs.replace(config, scheduling=scheduling)
    knobs = resolve_knobs(config, memory.share.spec, device, dtype_bytes=kept.dtype_bytes, kv=kept.kv)
    degrees = layout.degrees
    settings = msgspec.structs.replace(
        scheduler_settings(config, knobs, memory.plan),
        max_num_seqs=rows,
        max_num_batched_tokens=rows + degrees.pp * degrees.ep * candidate.chunk,  # a chunk in each place
        prefill_chunk_tokens=candidate.chunk,
        policy="priority",  # of one tenant and one class all policies are alike, and this one is cheap
    )
    groups = plan_kv_groups(memory.share.spec, kept.block_size, kept.kv.element_bytes, kept.kv.scale_bytes)
    return ReplicaSpec(
        settings=settings,
        layout=KVLayout(groups=groups, num_blocks=memory.plan.num_blocks * degrees.ep),
        prefix_caching=question.traffic.cached_share > 0,
    )


def prices_of(question: Question, candidate: Candidate) -> CostModel:
    """What the planner took steps to cost: timed prices as they are, counted ones round by round."""
    if isinstance(question.times, StepCost) and candidate.layout.degrees.num_ranks == 1:
        return question.times.frozen()
    return RoundPrices(layout_steps(question, candidate.layout))


def simulate(replica: ReplicaSpec, prices: CostModel, requests: Requests, slo: Slo) -> list[Ended]:
    ended: list[Ended] = []
    make_cluster(replica, prices, requests, on_end=ended.append, terms=by_class({"default": slo})).run()
    return ended


def load_of(ended: Sequence[Ended], slo: Slo, expected: Operating, num_replicas: int) -> Load:
    """What came out for these requests of one replica, beside what was `expected` of it."""
    lines = [e.timeline for e in ended if e.timeline is not None]
    good = sum(line.is_good(slo) for line in lines)
    streaming_s = sum(line.chunks[-1][0] - line.chunks[0][0] for line in lines if line.chunks)
    later = sum(line.num_tokens - line.chunks[0][1] for line in lines if line.chunks)
    refused = [math.inf] * (len(ended) - len(lines))
    return Load(
        rate_rps=num_replicas * expected.rate_rps,
        expected=expected,
        attainment=good / len(ended),
        ttft_p95_s=percentile([line.ttft_s for line in lines] + refused, 0.95),
        tpot_s=streaming_s / later if later else math.nan,
        num_preemptions=sum(e.usage.preemptions for e in ended if e.usage is not None),
        num_requests=len(ended),
    )


class FilledLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one replica: a filling, those that are looked at, and those behind them."""

    traffic: Traffic
    rate_rps: float
    rows: float  # that run on average at this rate
    prefill_share: float  # of steps that carry a chunk
    empty_step: float  # a step of few rows, over one of `rows`
    num_requests: int  # looked at

    @property
    def filling(self) -> tuple[float, float]:
        """Mean stays that the filling takes, and how much faster than later requests come in it. After n mean stays at
        an even rate the shorter ones have left: E[min(O, n mean O)] / mean O of the rows run that will. The shortest
        filling whose prompts leave some steps without a chunk."""
        outputs, mean = self.traffic.output_tokens, self.traffic.mean_output
        most = max(1.0, BUSY / max(self.prefill_share, 1e-9))
        for stays in STAYS:
            raised = mean / float(np.minimum(outputs, stays * mean).mean())
            if raised <= most:
                break
        return stays, min(raised, most)

    @property
    def num_filling(self) -> int:
        stays, raised = self.filling
        return max(FEWEST, math.ceil(stays * self.rows * raised))

    @property
    def num_behind(self) -> int:
        return math.ceil(BEHIND * self.rows)

    @property
    def num_all(self) -> int:
        return self.num_filling + self.num_requests + self.num_behind

    def looks_at(self, planned: PlannedRequest) -> bool:
        return self.num_filling <= planned.id < self.num_filling + self.num_requests

    def requests(self, seed: int) -> Requests:
        """All of them, by id in the order of their arrival."""
        filling = self.num_filling
        looked_at, others = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
        parts = [
            self._drawn(others, filling),
            self._drawn(looked_at, self.num_requests),
            self._drawn(others, self.num_behind),
        ]
        gaps, inputs, outputs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        # A request takes so many steps, and steps are shorter while few rows run
        stays, raised = self.filling
        rising = np.minimum(1.0, np.arange(filling) * stays / filling)
        gaps[:filling] *= (self.empty_step + (1 - self.empty_step) * rising) / raised
        cached = np.floor(self.traffic.cached_share * inputs)
        made = [
            PlannedRequest(
                id=index,
                stream="plan",
                at_s=at_s,
                num_input_tokens=int(num_input),
                num_output_tokens=int(num_output),
                content_seed=index,
                prefix_group=0 if num_cached else None,
                num_prefix_tokens=int(num_cached),
            )
            for index, (at_s, num_input, num_output, num_cached) in enumerate(
                zip((gaps.cumsum() / self.rate_rps).tolist(), inputs, outputs, cached, strict=True)
            )
        ]
        return Requests(requests=tuple(made), span_s=0.0, seed=seed)

    def _drawn(self, draws: np.random.Generator, num: int) -> tuple[Floats, Floats, Floats]:
        """Gaps, input and output tokens. [num] each. Gaps have a mean of exactly 1: near its capacity an engine is so
        steep that the few percent by which a few hundred arrivals miss their rate would decide everything."""
        cv = self.traffic.arrival_cv
        gaps = draws.gamma(cv**-2, cv**2, num) if cv > 0 else np.ones(num)
        gaps *= num / max(float(gaps.sum()), 1e-300)
        return gaps, _dealt(self.traffic.input_tokens, draws, num), _dealt(self.traffic.output_tokens, draws, num)


def _dealt(lengths: Floats, draws: np.random.Generator, num: int) -> Floats:
    """`num` of them, each as often as any other, in an order of their own. [num]"""
    return draws.permutation(np.resize(draws.permutation(lengths), num))
