"""The experiment's folder: one process, one spec, only whole points kept."""

from __future__ import annotations

import msgspec
import pytest

from paceline.errors import ConfigError, LabError
from paceline.lab.experiment.results import PointResult, read_experiment, write_experiment
from paceline.lab.experiment.spec import load_experiment
from paceline.lab.experiment.store import held, open_experiment

SPEC = {
    "experiment": {"name": "x"},
    "server": {"base": {"model": "m"}},
    "num_requests": 1,
    "stream": [{"arrival": {"kind": "closed", "slots": 1}}],
}


@pytest.fixture
def loaded(tmp_path):
    return load_experiment(SPEC, tmp_path)


def test_one_process_at_a_time(tmp_path):
    with held(tmp_path), pytest.raises(LabError, match="another experiment runs"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_only_whole_points_are_kept_and_the_rest_is_removed(tmp_path, loaded):
    result = open_experiment(tmp_path, loaded)
    nodes, elsewhere = tmp_path / "nodes", tmp_path / "elsewhere"
    for folder in (nodes / "whole", nodes / "cut", nodes / "lost", elsewhere):
        folder.mkdir(parents=True)
    (nodes / "whole" / "metrics.json").write_text("{}")
    points = (
        PointResult(id="1", node="base", path="nodes/whole"),
        PointResult(id="2", node="base", path="nodes/cut", status="partial"),
        PointResult(id="3", node="base", path="nodes/lost"),
        PointResult(id="4", node="base", status="invalid"),
        PointResult(id="5", node="base", path="nodes/../elsewhere", status="partial"),
    )
    write_experiment(tmp_path, msgspec.structs.replace(result, points=points, status="partial"))
    again = open_experiment(tmp_path, loaded)
    assert [p.id for p in again.points] == ["1"]
    assert again.status == "running"
    assert [p.name for p in nodes.iterdir()] == ["whole"]
    assert elsewhere.is_dir()  # no run of this experiment


def test_another_spec_or_version_is_refused(tmp_path, loaded):
    result = open_experiment(tmp_path, loaded)
    with pytest.raises(ConfigError, match="the spec has changed"):
        open_experiment(tmp_path, load_experiment({**SPEC, "num_requests": 2}, tmp_path))
    old = msgspec.structs.replace(result, fingerprint={"versions": {"paceline": "0.0.0"}})
    write_experiment(tmp_path, old)
    with pytest.raises(ConfigError, match="another version"):
        open_experiment(tmp_path, loaded)


def test_a_folder_of_something_else_is_left_alone(tmp_path, loaded):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        open_experiment(tmp_path, loaded)


def test_what_is_no_experiment_is_said(tmp_path):
    with pytest.raises(LabError, match="no experiment here"):
        read_experiment(tmp_path)
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(LabError, match="cannot be read"):
        read_experiment(tmp_path)
