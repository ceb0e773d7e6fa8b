"""The highest rate within the SLO, from points that come one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.contracts.artefact import Caution, Chunk, ChunkKind, RequestRecord, RunInfo, TargetInfo, Window
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass
from paceline.errors import LabError
from paceline.lab.artefact import StoredRun
from paceline.lab.experiment.rate_search import MAX_INVALID, Level, Search, asked_share, level_of, replay, search_rate
from paceline.lab.experiment.results import PointResult
from paceline.lab.metrics import compute

S = 1_000_000_000
SLO = SloClass(name="chat", e2e_s=1.0, share=0.9)


def run(rate: float, repeat: int, capacity: float, *, num: int = 200, status: str = "complete") -> StoredRun:
    """A server that is quick below its capacity and late for what is above it."""
    rng = np.random.default_rng(round(rate * 1000) + repeat)
    share = min(1.0, capacity / rate) if rate > capacity else 0.99
    records = []
    for i in range(num):
        at = round(i / rate * S)
        took = S // 2 if rng.random() < share else 3 * S
        chunks = [Chunk(at + took, ChunkKind.CONTENT, 1, 4)]
        records.append(
            RequestRecord(
                id=i,
                stream="chat",
                slo_class="chat",
                t_plan_ns=at,
                t_send_ns=at,
                t_close_ns=at + took,
                chunks=chunks,
                outcome=Outcome.OK,
                completion_tokens=1,
            )
        )
    info = RunInfo(
        name="x",
        status=status,
        slo=[SLO],
        window=Window(start_ns=0, end_ns=round(num / rate * S)),
        target=TargetInfo(url="http://x", model="m"),
    )
    return StoredRun(path=Path("x"), info=info, records=records, metrics=compute(info, records))


def test_across_a_cliff_the_interval_is_the_bracket_at_least():
    search = replay(Search(start_rps=1, precision=0.5), 0.9, [])
    for rate, good in ((1.0, 1000), (2.0, 0), (1.414, 0)):
        search.add(Level(rate_rps=rate, num_good=good, num_requests=1000, n_eff=1000, window_s=100))
    found = search.result()
    assert found.cliff
    assert (found.highest_pass_rps, found.lowest_fail_rps) == (1.0, 1.414)
    assert found.max_rate_rps.lo <= 1.0
    assert found.max_rate_rps.hi >= 1.414
    assert "cliff" in found.max_rate_rps.method


def test_the_bracket_holds_the_capacity_and_goodput_is_what_was_good_there():
    asked = []

    def measure_at(rate: float, repeat: int) -> StoredRun:
        asked.append((rate, repeat))
        return run(rate, repeat, capacity=10.0)

    result, runs = search_rate(measure_at, share=0.9, options=Search(start_rps=2.0, precision=0.1))
    assert len(runs) == len(asked) == len(set(asked))  # a rate that is asked again has another number
    assert result.highest_pass_rps <= 11.2
    assert result.lowest_fail_rps >= 10.0
    assert result.highest_pass_rps < result.lowest_fail_rps <= 1.11 * result.highest_pass_rps
    at = next(level for level in result.levels if level.rate_rps == result.highest_pass_rps)
    assert result.goodput_at_max_rps.value == pytest.approx(at.num_good / at.num_requests * at.rate_rps, rel=1e-6)
    assert result.goodput_at_max_rps.lo <= result.goodput_at_max_rps.value <= result.goodput_at_max_rps.hi
    assert [level.rate_rps for level in result.levels] == sorted({rate for rate, _ in asked})


def test_a_search_that_goes_on_later_decides_the_same():
    """Replayed from stored points, in another order, it asks for the same rate next."""
    options, levels = Search(start_rps=2.0, max_points=20), []
    search = replay(options, 0.9, [])
    while (wanted := search.next()) is not None:
        level = level_of(run(*wanted, capacity=10.0), wanted[0])
        levels.append(
            PointResult(
                id=str(len(levels)),
                node="n",
                rate_rps=level.rate_rps,
                num_good=level.num_good,
                num_requests=level.num_requests,
                n_eff=level.n_eff,
                window_s=level.window_s,
            )
        )
        search.add(level)
        assert replay(options, 0.9, reversed(levels)).next() == search.next()
    assert replay(options, 0.9, levels).result().highest_pass_rps == search.result().highest_pass_rps


def test_points_that_are_not_whole_do_not_count():
    point = PointResult(id="1", node="n", rate_rps=2.0, num_good=0, num_requests=100, status="invalid")
    assert replay(Search(start_rps=2.0), 0.9, [point]).next() == (2.0, 0)


def test_a_client_that_is_bound_is_asked_again_and_then_given_up():
    invalid = run(2.0, 0, capacity=10.0)
    cautions = (Caution(code="client_bound", sentence="the client was late", invalidates=True),)
    invalid.metrics = type(invalid.metrics)(window=invalid.metrics.window, cautions=cautions)
    count = 0

    def measure_at(_rate: float, _repeat: int) -> StoredRun:
        nonlocal count
        count += 1
        return invalid

    with pytest.raises(LabError, match="cannot be measured"):
        search_rate(measure_at, share=0.9, options=Search(start_rps=2.0))
    assert count == MAX_INVALID


def test_an_interrupted_search_says_what_it_knows():
    def measure_at(rate: float, repeat: int) -> StoredRun:
        return run(rate, repeat, capacity=10.0, status="partial" if rate > 3 else "complete")

    result, runs = search_rate(measure_at, share=0.9, options=Search(start_rps=2.0))
    assert len(runs) == 2
    assert result.highest_pass_rps == 2.0
    assert result.lowest_fail_rps is None


def test_the_share_is_the_searchs_own_or_the_mean_of_the_classes():
    classes = [SloClass(name="a", share=0.9), SloClass(name="b", share=0.99)]
    assert asked_share(classes, Search(share=0.8)) == 0.8
    assert asked_share(classes) == pytest.approx(0.945)
    assert asked_share([]) == 0.95
