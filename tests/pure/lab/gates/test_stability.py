"""The soak's verdict: leaks, hangs, deaths and blocks that do not come back, planted one by one."""

import random

import msgspec
import pytest
from tests.fakes.lab.gate_runs import SECOND, answered, failed

from paceline.contracts.artefact import Answer, TargetInfo
from paceline.contracts.slo import Outcome
from paceline.errors import LabError
from paceline.lab.gates import SoakResult, StabilityGate, read_soak, stability_gate, write_soak
from paceline.lab.gates.soak import longest_silence, phase_of
from paceline.lab.gates.soak_result import Checkpoint, Phase

MIB = 1 << 20


def soak(*, rss=lambda _: 500.0, fds=lambda _: 40, held=lambda _: 0, count=24, **fields):
    points = [
        Checkpoint(t_s=300.0 * i, rss_bytes=rss(i) * MIB, num_fds=fds(i), num_held_blocks=held(i), num_free_blocks=100,
                   num_restarts=0, started_at=1.0)
        for i in range(count)
    ]  # fmt: skip
    phase = Phase(begin_s=0, seconds=300, num_requests=100, outcomes={"ok": 95, "client_cancel": 5},
                  longest_silence_s=0.4, goodbyes=5)  # fmt: skip
    given = {"checkpoints": points, "phases": [phase], "ran_s": 300.0 * count, **fields}
    return SoakResult(target=TargetInfo(url="u", model="m"), asked_s=7200.0, **given)


def answers(result, **limits):
    return {each.subject: each.answer for each in stability_gate(result, StabilityGate(**limits))}


def noise(i, scale=2.0):
    return scale * random.Random(i).gauss(0, 1)


def test_a_server_that_stays_as_it_is_passes():
    found = answers(soak(rss=lambda i: 500 + (40 if i else 0) + noise(i, 0.2)))
    assert set(found.values()) == {Answer.PASS}
    assert len(found) == 7


def test_a_leak_is_found_and_one_within_the_limit_is_not_called_one():
    leaking = soak(rss=lambda i: 500 + 2.0 * i + noise(i))  # 2 MiB in 5 minutes: 576 MiB a day
    assert answers(leaking)["rss"] is Answer.FAIL
    assert answers(leaking, max_rss_growth_mib_per_day=1000.0)["rss"] is Answer.PASS
    assert answers(soak(fds=lambda i: 40 + i))["open files"] is Answer.FAIL


def test_a_jump_at_the_start_is_no_leak():
    assert answers(soak(rss=lambda i: 500 if i < 3 else 900))["rss"] is Answer.PASS


def test_noise_that_looks_steep_is_not_a_fail():
    assert answers(soak(rss=lambda i: 500 + noise(i, 30), count=14))["rss"] is not Answer.FAIL


def test_few_checkpoints_are_inconclusive():
    assert answers(soak(count=6))["rss"] is Answer.INCONCLUSIVE
    assert answers(soak(), min_hours=3.0)["alive"] is Answer.INCONCLUSIVE


def test_blocks_that_stay_held_fail():
    assert answers(soak(held=lambda i: 2 * i))["KV blocks"] is Answer.FAIL
    assert answers(soak(held=lambda _: 4))["KV blocks"] is Answer.FAIL
    assert answers(soak(held=lambda i: 3 if i == 23 else 0, count=24))["KV blocks"] is not Answer.FAIL


def test_a_server_that_does_not_come_to_rest_fails():
    """Requests whose clients are gone and that run on: no checkpoint is at rest, and leaks cannot be seen either."""
    stuck = soak()
    stuck.checkpoints[1:] = [msgspec.structs.replace(point, idle=False) for point in stuck.checkpoints[1:]]
    assert answers(stuck)["rest"] is Answer.FAIL
    late = soak()
    late.checkpoints[-1] = msgspec.structs.replace(late.checkpoints[-1], idle=False)
    assert answers(late)["rest"] is Answer.INCONCLUSIVE
    once = soak()
    once.checkpoints[5] = msgspec.structs.replace(once.checkpoints[5], idle=False)
    assert answers(once)["rest"] is Answer.PASS


def test_death_restarts_and_hangs_fail():
    assert answers(soak(died="no answer"))["alive"] is Answer.FAIL
    again = soak()
    again.checkpoints[-1] = Checkpoint(t_s=9000, started_at=2.0, num_restarts=0)
    assert answers(again)["alive"] is Answer.FAIL
    engine = soak()
    engine.checkpoints[-1] = Checkpoint(t_s=9000, started_at=1.0, num_restarts=1)
    assert answers(engine)["alive"] is Answer.FAIL
    assert answers(soak(hung="no token for 70 s"))["no hang"] is Answer.FAIL
    assert answers(soak(), max_no_token_s=0.3)["no hang"] is Answer.FAIL


def test_requests_that_ended_ill_fail():
    bad = Phase(begin_s=0, seconds=1, num_requests=10, outcomes={"ok": 9, "http_error": 1}, longest_silence_s=0,
                num_unasked=1)  # fmt: skip
    assert answers(soak(phases=[bad]))["errors"] is Answer.FAIL
    assert answers(soak(phases=[bad]), max_error_share=0.2)["errors"] is Answer.PASS


def test_what_cannot_be_read_is_not_measured():
    blind = soak()
    blind.checkpoints = [Checkpoint(t_s=p.t_s) for p in blind.checkpoints]
    found = answers(blind)
    assert [found[name] for name in ("rss", "open files", "KV blocks")] == [Answer.NOT_MEASURED] * 3
    assert stability_gate(None, StabilityGate())[0].answer is Answer.NOT_MEASURED


def test_silence_counts_only_while_something_is_in_flight():
    first = answered(0, ttft_s=0.5, tpot_s=0.1, num_tokens=3)  # 0 .. 0.7 s
    later = answered(100, ttft_s=0.2, tpot_s=0.3, num_tokens=2)  # from 10 s: nothing runs in between
    assert longest_silence([first, later]) == pytest.approx((0.5, 0.0))
    hung = failed(100, Outcome.TIMEOUT, after_s=7.0)
    seconds, at_s = longest_silence([first, later, hung])
    assert seconds == pytest.approx(6.5)  # from the last token at 10.5 s to 17 s
    assert at_s == pytest.approx(10.5)
    assert longest_silence([]) == (0.0, 0.0)


def test_a_phase_tells_what_the_client_did_from_what_the_server_did():
    records = [answered(0, ttft_s=0.1), failed(1, Outcome.CLIENT_CANCEL), failed(2, Outcome.DISCONNECT),
               failed(3, Outcome.STREAM_ERROR)]  # fmt: skip
    never = failed(4, Outcome.NOT_SENT)
    never.t_send_ns = never.t_close_ns = -1
    phase = phase_of([*records, never], 12.0, 5.0)
    assert (phase.num_requests, phase.goodbyes, phase.num_unasked) == (4, 2, 1)
    assert phase.outcomes == {"ok": 1, "client_cancel": 1, "disconnect": 1, "stream_error": 1}
    assert phase.longest_silence_s * SECOND > 0


def test_a_soak_is_stored_and_read_back(tmp_path):
    result = soak()
    assert read_soak(write_soak(tmp_path / "soak", result).parent) == result
    with pytest.raises(LabError, match="no soak"):
        read_soak(tmp_path)
