"""A second opinion on planned candidates: when it changes their order, and what is said of it."""

import msgspec
import pytest
from tests.pure.planner.kit import question, short, traffic

from paceline.planner import make_plan
from paceline.planner.plan import rows_to_run
from paceline.planner.search import one_more, search
from paceline.planner.steady import Operating
from paceline.planner.verify import Load, Simulated, in_simulated_order, is_ahead, meets

EXPECTED = Operating(
    rows=10.0, rate_rps=5.0, step_ms=20.0, prefill_share=0.3, ttft_p50_s=0.1, ttft_p95_s=0.2, attainment=0.99,
    ttft_met=0.99, tpot_met=1.0, seated=1.0,
)  # fmt: skip


def load(rate, attainment, num=300):
    return Load(
        rate_rps=rate, expected=EXPECTED, attainment=attainment, ttft_p95_s=0.2, tpot_s=0.02, num_preemptions=0,
        num_requests=num,
    )  # fmt: skip


def simulated(*loads):
    return Simulated(loads=loads, share=0.95, seed=0)


def planted(*attainments):
    """A verifier that finds these shares of requests in time, best candidate first, at the predicted capacity."""

    def verify(_, best):
        pairs = zip(best, attainments, strict=False)
        return [msgspec.structs.replace(c, simulated=simulated(load(c.capacity_rps, share))) for c, share in pairs]

    return verify


@pytest.fixture(scope="module")
def asked():
    return question(devices=4, traffic=short())


def names(found):
    return [str(c.layout) for c in found.candidates if c.fits]


def test_a_prediction_that_was_wrong_loses_its_place(asked):
    predicted = names(search(asked))
    found = search(asked, verify=planted(0.4, 0.99, 0.99))
    assert names(found) == [predicted[1], predicted[2], predicted[0], *predicted[3:]]
    plan = make_plan(asked, verify=planted(0.4, 0.99, 0.99))
    assert str(plan.chosen.layout) == predicted[1]
    assert any(
        f"{predicted[0]} was predicted to be better than {predicted[1]}" in note and "40%" in note
        for note in plan.notes
    )


def test_a_prediction_that_holds_keeps_its_place(asked):
    predicted = names(search(asked))
    for shares in ((0.99, 0.99, 0.99), (0.94, 1.0, 1.0)):  # the second is a difference within noise
        assert names(search(asked, verify=planted(*shares))) == predicted
    assert not any("predicted to be better" in note for note in make_plan(asked, verify=planted(1.0, 1.0, 1.0)).notes)


def test_what_the_simulator_does_not_confirm_is_said(asked):
    plan = make_plan(asked, verify=planted(0.3, 0.1, 0.1))
    assert plan.chosen.simulated is not None
    assert any("the simulator does not confirm" in note and "30%" in note for note in plan.notes)


def test_a_lower_load_that_is_confirmed_is_said(asked):
    def verify(_, best):
        return [msgspec.structs.replace(c, simulated=simulated(load(100, 0.7), load(80, 0.99))) for c in best]

    notes = make_plan(asked, verify=verify).notes
    assert any("confirms 80 requests/s: at 100, 70% are in time where 99% were predicted" in note for note in notes)


def test_only_the_best_are_asked_and_none_gets_lost(asked):
    seen = []

    def verify(_, best):
        seen.extend(best)
        return best[::-1]  # without a word about any: the prediction stands

    found = search(asked, verify=verify, num_verified=2)
    assert len(seen) == 2
    assert names(found) == names(search(asked))
    plan = make_plan(asked, verify=verify)
    assert plan.notes == make_plan(asked).notes


def test_noise_allows_for_few_requests():
    assert meets(load(10, 0.93), 0.95)
    assert not meets(load(10, 0.92), 0.95)
    assert not meets(load(10, 0.93, num=3000), 0.95)


def test_goodput_decides_where_no_rate_is_asked_for(asked):
    best, second, *_ = search(asked, verify=planted(0.99, 0.99)).candidates
    slower = msgspec.structs.replace(best, simulated=simulated(load(100, 0.5), load(80, 0.99)))
    level = msgspec.structs.replace(second, simulated=simulated(load(82, 0.99)))
    faster = msgspec.structs.replace(second, simulated=simulated(load(95, 0.99)))
    assert slower.simulated.first.rate_rps == 100
    assert slower.simulated.met
    assert not is_ahead(asked, level, slower)
    assert is_ahead(asked, faster, slower)
    assert not is_ahead(asked, slower, faster)
    unknown = msgspec.structs.replace(second, simulated=None)
    assert not is_ahead(asked, unknown, slower)
    assert not is_ahead(asked, slower, unknown)


def test_at_an_asked_rate_what_both_carry_is_no_contest():
    ask = question(devices=4, traffic=traffic(rate_rps=5.0))
    found = [c for c in search(ask).candidates if c.fits][:2]
    pair = [
        msgspec.structs.replace(c, simulated=simulated(load(rate, 0.99))) for c, rate in zip(found, (5, 9), strict=True)
    ]
    assert [c.layout for c in in_simulated_order(ask, pair)] == [c.layout for c in pair]


def test_one_replica_more_where_there_are_devices():
    ask = question(devices=4, traffic=traffic(rate_rps=5.0))
    first = search(ask).chosen
    more = one_more(ask, first)
    assert more.layout.replicas == first.layout.replicas + 1
    assert more.operating.rate_rps == pytest.approx(5.0 / more.layout.replicas, rel=0.01)
    assert more.operating.ttft_p95_s < first.operating.ttft_p95_s
    assert rows_to_run(more) == rows_to_run(first)  # an engine is started alike
    while more is not None:
        last, more = more, one_more(ask, more)
    assert last.num_devices == 4
    assert one_more(question(devices=4), search(question(devices=1)).chosen) is None  # no rate: all there are
