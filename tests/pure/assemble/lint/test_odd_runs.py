"""Artefacts of other versions, other programs, or cut short: looked at as far as they can be, and never a crash."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.assemble.lint.kit import Case
from tests.pure.planner.lint.worlds import config

from paceline.assemble.lint import lint_folder, serving_of
from paceline.assemble.lint.load import load_facts
from paceline.assemble.lint.simulated import Around, around
from paceline.assemble.lint.stored import run_facts
from paceline.assemble.sim import simulated_engine, tiering_of
from paceline.config import load_config
from paceline.contracts.artefact import ClientHealth, RequestRecord, RunInfo
from paceline.contracts.lint import LintResult
from paceline.contracts.workload import SloClass
from paceline.errors import LabError
from paceline.lab.artefact import StoredRun, write_run
from paceline.lab.metrics import compute
from paceline.lab.workload import load_spec
from paceline.planner.lint import RULES, ClientFacts, Facts, FleetFacts, LoadFacts, TraceFacts, lint

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 4, "memory_utilization": 0.72}
STREAM = {"arrival": {"kind": "closed", "slots": 2}, "input": 32, "output": 2, "prefix": {"groups": 2, "tokens": 64}}
TIER = "nvme=500,0.3,100"
LOOK = {"t_ns": 1000, "common": {"num_running": 1, "num_waiting": 0, "kv_usage": 0.1}}
ODD: list[Any] = [None, True, -1, 0, 1e300, "x", "", [], {}, [1, "a"], {"a": 1}, [None], [[]], [{"kind": 3}], -1e9]


@dataclass
class Told:
    """A run as it lies in its files."""

    info: dict[str, Any]
    records: list[dict[str, Any]]
    looks: list[dict[str, Any]]

    def linted(self) -> LintResult | None:
        """None where the reader itself refuses it, as `read_run` does in words."""
        try:
            info = msgspec.convert(self.info, RunInfo)
            records = msgspec.convert(self.records, list[RequestRecord])
            looks = msgspec.convert(self.looks, list[dict[str, Any]])
        except msgspec.ValidationError:
            return None
        run = StoredRun(
            path=Path("runs") / "odd", info=info, records=records, metrics=compute(info, records),
            server_metrics=looks,
        )  # fmt: skip
        return lint(run_facts(run, start_budget_s=1.0))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A simulated run with all that an artefact can tell of a fleet."""
    folder = tmp_path_factory.mktemp("odd")
    load = {"num_requests": 10, "slo": {"default": {"ttft_s": 1.0}}, "stream": [STREAM]}
    fleet = serving_of(tiers=[TIER], tier_policy="always", num_replicas=2, router="longest-prefix")
    engine = simulated_engine(load_config(None, SETTINGS), card="l4")
    run = Case(folder, SETTINGS, load, "l4", fleet).simulated(tiering=tiering_of([TIER], "always", engine))
    run.info.start = {"kind": "warm", "ready_s": 1.5, "phases": {"weights": 1.0}}
    run.info.cache = {"protocol": ["salt"], "ok": True, "flushed": True}
    return json.dumps([msgspec.to_builtins(run.info), msgspec.to_builtins(run.records), [LOOK, LOOK]])


def read(written: str) -> Told:
    return Told(*json.loads(written))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in items for place in ((*at, key), *places(each, (*at, key)))]


def spoil(value: Any, draw: st.DataObject) -> None:
    *way, last = draw.draw(st.sampled_from(places(value)))
    for key in way:
        value = value[key]
    if draw.draw(st.booleans()):
        del value[last]
    else:
        value[last] = draw.draw(st.sampled_from(ODD))


CLIENT = ClientFacts(name="earlier", health=ClientHealth(), num_again=0, num_attempts=0)
OPEN = {"duration_s": 10.0, "stream": [{"arrival": {"kind": "poisson", "rate": 50.0}, "input": 32, "output": 200}]}


@pytest.mark.parametrize("num_processes", [-1, 0, 1])
@pytest.mark.parametrize("cpu_us", [-1.0, 0.0, 100.0, 1e30, math.inf, math.nan])
def test_a_client_that_told_something_odd_is_not_judged_by_it(num_processes: int, cpu_us: float) -> None:
    told = msgspec.structs.replace(CLIENT.health, num_processes=num_processes, cpu_us_per_chunk=cpu_us)
    client = msgspec.structs.replace(CLIENT, health=told)
    facts = Facts(source="config", name="odd", client=client, load=load_facts(load_spec(OPEN)))
    result = lint(facts)
    assert ("PL206" in result.judged) == (cpu_us == 100.0 and num_processes == 1)
    assert ("PL206" in result.skipped) != ("PL206" in result.judged)


@given(draw=st.data())
def test_whatever_an_artefact_says_each_rule_is_judged_or_skipped(written: str, draw: st.DataObject) -> None:
    told = read(written)
    spoil(draw.draw(st.sampled_from([told.info, told.info, told.records, told.looks])), draw)
    result = told.linted()
    if result is not None:
        assert {*result.judged, *result.skipped} == {rule.code for rule in RULES}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("card", {"name": "x"}), ("card", 7), ("degrees", {"tp": "four"}), ("degrees", {"tp": 0}), ("replicas", [1]),
        ("replicas", 0), ("expert_imbalance", "much"), ("acceptance", [0.1]), ("experts", -1), ("tiers", [{}]),
        ("tiers", [{"name": "nvme", "gbps": "fast"}]), ("cold_start_s", -1), ("router", None),
    ],
)  # fmt: skip
def test_a_simulation_that_is_described_otherwise_says_nothing_of_its_fleet(written: str, key: str, value: Any) -> None:
    told = read(written)
    info = msgspec.convert(told.info, RunInfo)
    assert around(info, ()).fleet is not None
    info.fingerprint["simulation"][key] = value
    assert around(info, ()) == Around()


@pytest.mark.parametrize("whole", [None, [], "x", 3])
def test_a_simulation_that_is_no_table_says_nothing(written: str, whole: Any) -> None:
    info = msgspec.convert(read(written).info, RunInfo)
    info.fingerprint["simulation"] = whole
    assert around(info, ()) == Around()


def test_a_card_without_rates_has_no_prices(written: str) -> None:
    told = read(written)
    told.info["fingerprint"]["simulation"]["card"]["spec"]["memory_gbps"] = 0
    result = told.linted()
    assert result is not None
    assert "PL207" in result.skipped


def test_a_division_that_no_model_has_is_left_out_and_the_rest_is_judged(written: str) -> None:
    told = read(written)
    told.info["fingerprint"]["simulation"]["degrees"] = {"tp": 7}
    result = told.linted()
    assert result is not None
    assert "PL104" in result.skipped
    assert {"PL105", "PL207"} <= set(result.judged)


def test_a_run_without_requests_and_a_load_without_any_are_looked_at(written: str) -> None:
    told = read(written)
    told.records = []
    result = told.linted()
    assert result is not None
    assert "PL204" in result.judged
    nothing = LoadFacts(name="l", requests=(), window_s=5.0)
    fleet = FleetFacts(num_replicas=2, router="longest-prefix", acceptance=(1.5,), speculates=True)
    facts = config(
        nothing, (SloClass(ttft_s=1.0, tpot_s=0.1),), fleet=fleet, trace=TraceFacts(name="t", cv=3.0, num_requests=9)
    )
    assert "PL212" in lint(facts).judged


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 3}', '{"name": "x"}', "\x00"])
def test_a_broken_run_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(LabError, match=r"run\.json cannot be read"):
        lint_folder(tmp_path)


def test_records_that_end_in_the_middle_of_a_line_are_a_run_that_was_interrupted(written: str, tmp_path: Path) -> None:
    told = read(written)
    records = msgspec.convert(told.records, list[RequestRecord])
    write_run(tmp_path, msgspec.convert(told.info, RunInfo), records)
    (file,) = tmp_path.glob("requests*")
    file.write_bytes(file.read_bytes()[:-40])
    (tmp_path / "metrics.json").unlink()
    (result,) = lint_folder(tmp_path)
    assert {*result.judged, *result.skipped} == {rule.code for rule in RULES}
