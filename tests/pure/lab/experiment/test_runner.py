"""The order of things in an experiment, with servers and loads that are made up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest

from paceline.contracts.artefact import Estimate
from paceline.lab.experiment import runner
from paceline.lab.experiment.nodes import NodeStarter, Ready
from paceline.lab.experiment.process import StoppedError
from paceline.lab.experiment.results import NodeResult, PointResult, StartResult
from paceline.lab.experiment.runner import run_experiment
from paceline.lab.experiment.spec import load_experiment

SPEC = {
    "experiment": {"name": "x"},
    "server": {"base": {"model": "m"}},
    "duration_s": 1,
    "stream": [{"arrival": {"kind": "poisson", "rate": 1}, "input": 32, "output": 8}],
}
SEARCH = {**SPEC, "search": {"start_rps": 1.0, "max_points": 4, "precision": 0.5, "max_repeats": 1}}
Measured = Callable[[str], PointResult]


def ok(point, num_good: int = 100) -> PointResult:
    figures = {"goodput_rps": Estimate(value=1.0)}
    return PointResult(
        id=point.id,
        node=point.node,
        repeat=point.repeat,
        rate_rps=point.rate_rps,
        purpose=point.purpose,
        num_requests=100,
        num_good=num_good,
        window_s=100.0,
        figures=figures,
    )


@pytest.fixture
def stage(monkeypatch):
    """Replaces servers and loads; `stage.measure` makes each point, `stage.visits` says who was started."""

    class Stage:
        def __init__(self) -> None:
            self.measure = ok
            self.visits: list[str] = []
            self.on_visit = lambda: None

        @contextmanager
        def at(self, visitor, node):
            self.visits.append(node.name)
            self.on_visit()
            visitor.on_start(node.name, StartResult(kind="warm"))
            yield lambda point, _place, _total: self.measure(point)

    made = Stage()

    class FakeVisitor:
        def __init__(self, _loaded, _folder, _starter, _workload, _reporter, on_start, _stop) -> None:
            self.on_start = on_start

        def fingerprint(self, _base, model):
            return {"model": model} if model else {}

        def at(self, node):
            return made.at(self, node)

    monkeypatch.setattr(runner, "Visitor", FakeVisitor)
    monkeypatch.setattr(NodeStarter, "settle", lambda _self, name, _parent: Ready(result=NodeResult(name=name)))
    return made


def test_a_server_that_dies_in_a_search_is_started_again(stage, tmp_path):
    died: list[str] = []

    def measure(point):
        if not died:
            died.append(point.id)
            return PointResult(id=point.id, node="base", status="invalid", reason="it ended", log_tail=("its end",))
        return ok(point, 100 if point.rate_rps < 3 else 0)

    stage.measure = measure
    result = run_experiment(load_experiment(SEARCH, tmp_path), tmp_path / "out")
    assert stage.visits == ["base", "base", "base"]  # the end of the first came with its first point
    assert [p.rate_rps for p in result.points] == [1.0, 2.0, 4.0, 2.828]
    assert result.points[0].id == died[0]
    assert result.status == "complete"
    assert result.best == "base"
    assert result.cautions == ()
    again = run_experiment(load_experiment(SEARCH, tmp_path), tmp_path / "out")
    assert again.points == result.points


def test_a_node_that_cannot_be_measured_ends_its_search(stage, tmp_path):
    stage.measure = lambda point: PointResult(id=point.id, node="base", status="invalid", reason="client bound")
    result = run_experiment(load_experiment(SEARCH, tmp_path), tmp_path / "out")
    assert len(result.points) == 1
    assert result.best is None
    (caution,) = result.cautions
    assert "1 of 1 points" in caution.sentence
    assert "client bound" in caution.sentence


def test_a_search_that_one_request_decides_says_so(stage, tmp_path):
    stage.measure = lambda point: msgspec.structs.replace(ok(point), num_requests=4, num_good=3)
    result = run_experiment(load_experiment(SEARCH, tmp_path), tmp_path / "out")
    (caution,) = result.cautions
    assert caution.code == "thin_search"
    assert "base 4" in caution.sentence


def test_out_of_time_after_the_last_point_is_a_whole_experiment(stage, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def measure(point):
        clock[0] += 40.0
        return ok(point)

    stage.measure = measure
    timed = {**SPEC, "experiment": {"name": "x", "max_minutes": 1}}
    assert run_experiment(load_experiment(timed, tmp_path), tmp_path / "whole").status == "complete"
    timed["experiment"]["repeats"] = 3
    clock[0] = 0.0
    cut = run_experiment(load_experiment(timed, tmp_path), tmp_path / "cut")
    assert cut.status == "partial"
    assert len(cut.points) == 2
    timed = {**SEARCH, "experiment": {"name": "x", "max_minutes": 1}}
    clock[0], stage.visits = 0.0, []
    assert run_experiment(load_experiment(timed, tmp_path), tmp_path / "search").status == "partial"
    assert stage.visits == ["base"]  # no server is started only to be stopped


def test_told_to_stop_while_a_server_starts_keeps_what_there_was(stage, tmp_path):
    def on_visit() -> None:
        if len(stage.visits) == 2:
            raise StoppedError

    stage.on_visit = on_visit
    result = run_experiment(load_experiment(SPEC, tmp_path), tmp_path / "out", stop=threading.Event())
    assert result.status == "partial"
    assert len(result.points) == 1
    assert [s.kind for s in result.node("base").starts] == ["warm"]


def test_as_many_warm_starts_as_were_asked_for(stage, tmp_path, monkeypatch):
    @contextmanager
    def started(_self, _node, _cold=()):
        yield None, StartResult(kind="warm")

    monkeypatch.setattr(NodeStarter, "started", started)
    result = run_experiment(load_experiment({**SPEC, "start": {"warm": 5}}, tmp_path), tmp_path / "out")
    assert len(result.node("base").starts) == 5
    assert stage.visits == ["base", "base"]


@pytest.mark.usefixtures("stage")
def test_what_is_known_of_the_model_outlives_an_interruption(tmp_path, monkeypatch):
    loaded = load_experiment(SPEC, tmp_path)
    monkeypatch.setattr(
        runner.Visitor, "fingerprint", lambda _self, _base, model: {"model": model or {"weights_sha256": "abc"}}
    )
    run_experiment(loaded, tmp_path / "out")
    monkeypatch.setattr(runner.Visitor, "fingerprint", lambda _self, _base, model: {"model": model})
    assert run_experiment(loaded, tmp_path / "out").fingerprint == {"model": {"weights_sha256": "abc"}}
