"""Which targets a simulation schedules by: those of the server's table of classes, and no workload's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.assemble.sim import Simulated, load_workload, server_terms, simulate, simulated_engine
from paceline.config import ServerConfig, load_config
from paceline.contracts.slo import Outcome, Slo
from paceline.contracts.workload import PlannedRequest
from paceline.errors import ConfigError
from paceline.lab.workload import load_spec, parse_slo, with_slo
from paceline.server.tenancy.classes import BUILT_IN_CLASSES

CLASSES = """
[classes.quick]
priority = -5
ttft_ms = 200
tpot_ms = 30
timeout_s = 60
shed = true

[classes.patient]
ttft_ms = 1
refuse_late = true
"""


def run(server: ServerConfig | None = None, *, slo: str = "ttft=300ms,tpot=40ms", **flags: Any) -> Simulated:
    """A load that not all targets bear."""
    engine = simulated_engine(load_config(flags={"model": "llama-3.1-8b", **flags}), card="l40s")
    spec = with_slo(load_workload("long-short", engine, rate=3.0, duration_s=12.0), parse_slo(slo))
    return simulate(engine, spec, terms=None if server is None else server_terms(server))


def chunks(simulated: Simulated) -> list[list[int]]:
    """When tokens came."""
    return [[chunk.t_ns for chunk in record.chunks] for record in simulated.records]


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "tenants.toml"
    path.write_text(CLASSES)
    return str(path)


def test_a_server_without_a_table_schedules_by_the_class_default_and_so_does_its_simulation() -> None:
    plain = chunks(run())
    assert plain != chunks(run(scheduling_mode="fixed"))
    default = BUILT_IN_CLASSES["default"].slo
    assert (default.ttft_s, default.tpot_s) == (2.0, 0.2)
    assert plain == chunks(run(ServerConfig(slo="ttft=2s,tpot=200ms")))


def test_a_workloads_targets_judge_and_do_not_lead() -> None:
    assert chunks(run(slo="ttft=5s,tpot=300ms")) == chunks(run())


def test_a_servers_own_targets_lead() -> None:
    tight = run(ServerConfig(slo="ttft=1s,tpot=60ms"))
    assert chunks(tight) != chunks(run())


def test_a_request_gets_the_terms_that_the_server_would_give_it(table: str) -> None:
    terms = server_terms(ServerConfig(tenants=table))
    quick = terms(PlannedRequest(id=1, stream="s", service_class="quick", slo_class="whatever"))
    assert quick.latency_class == "quick"
    assert quick.slo == Slo(ttft_s=0.2, tpot_s=0.03)
    assert (quick.priority, quick.timeout_s, quick.queue_timeout_s, quick.refuse_late) == (-5, 60.0, 0.2, False)
    plain = terms(PlannedRequest(id=2, stream="s", priority=3))
    assert (plain.latency_class, plain.priority, plain.slo) == ("default", 3, BUILT_IN_CLASSES["default"].slo)


def test_a_class_that_refuses_the_late_refuses_them_in_a_simulation_as_well(table: str) -> None:
    engine = simulated_engine(load_config(flags={"model": "llama-3.1-8b"}), card="l40s")
    stream = {"arrival": {"kind": "poisson", "rate": 2.0}, "input": 500, "output": 8, "service_class": "patient"}
    spec = load_spec({"name": "w", "duration_s": 3.0, "stream": [stream]})
    ends = simulate(engine, spec, terms=server_terms(ServerConfig(tenants=table))).records
    assert ends
    assert {record.outcome for record in ends} == {Outcome.REJECTED}
    assert {record.http_status for record in ends} == {429}


def test_a_class_that_the_server_does_not_have_is_named_with_its_stream() -> None:
    engine = simulated_engine(load_config(flags={"model": "llama-3.1-8b"}), card="l40s")
    stream = {"arrival": {"kind": "poisson", "rate": 2.0}, "input": 50, "output": 8, "service_class": "interactiv"}
    spec = load_spec({"name": "w", "duration_s": 3.0, "stream": [{"name": "chat", **stream}]})
    with pytest.raises(ConfigError, match=r"stream chat.*did you mean interactive"):
        simulate(engine, spec)
