"""The soak against a real server process: one that is well, one that hangs, one that is killed."""

from __future__ import annotations

from tests.fakes.server_process import running_server

from paceline.contracts.artefact import Answer
from paceline.lab.gates import StabilityGate, read_soak, stability_gate
from paceline.lab.gates.soak import SoakOptions, run_soak

FAST = {"kind": "simulated", "fixed_ms": 2.0}


def answers(result, **limits):
    return {each.subject: each.answer for each in stability_gate(result, StabilityGate(**limits))}


def test_a_server_that_is_well_gives_everything_back(tmp_path):
    options = SoakOptions(
        seconds=5.0, phase_s=0.4, output_tokens=(4, 40), cancel_share=0.2, disconnect_share=0.2, watchdog_s=30.0
    )
    with running_server(FAST) as server:
        result = run_soak(server.base_url, options, pid=server.pid, folder=tmp_path)
    assert read_soak(tmp_path) == result
    assert not result.died
    assert not result.hung
    assert len(result.checkpoints) == len(result.phases) + 1
    assert sum(phase.goodbyes for phase in result.phases) > 0
    assert sum(phase.outcomes.get("ok", 0) for phase in result.phases) > 0
    assert all(point.idle and point.num_held_blocks == 0 for point in result.checkpoints)
    assert all((point.rss_bytes or 0) > 1 << 20 and (point.num_fds or 0) > 3 for point in result.checkpoints)
    assert "children" in result.sources["rss"]
    found = answers(result)
    for subject in ("alive", "no hang", "errors", "KV blocks"):
        assert found[subject] is Answer.PASS, subject
    assert found["open files"] is not Answer.NOT_MEASURED
    assert answers(result, min_hours=1.0)["alive"] is Answer.INCONCLUSIVE


def test_a_hang_ends_the_soak_and_fails_it():
    options = SoakOptions(seconds=600.0, phase_s=0.5, watchdog_s=1.5, idle_wait_s=0.5)
    with running_server(FAST) as server:
        result = run_soak(server.base_url, options, on_phase=lambda _: server.control("hang"))
        server.control("")
    assert "no token for" in result.hung
    assert result.ran_s < 300
    assert answers(result, max_no_token_s=1.5)["no hang"] is Answer.FAIL
    assert result.phases[-1].num_unasked > 0  # they timed out


def test_a_server_that_dies_fails_the_soak():
    options = SoakOptions(seconds=600.0, phase_s=0.5, watchdog_s=5.0, idle_wait_s=0.5)
    with running_server(FAST) as server:
        result = run_soak(server.base_url, options, on_phase=lambda _: server.process.kill())
    assert "does not answer" in result.died
    assert answers(result)["alive"] is Answer.FAIL
