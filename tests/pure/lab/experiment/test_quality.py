"""Quality inside an experiment: alone, under load, between two nodes, and what becomes of one that cannot be had."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.fakes.lab.quality_arms import NUM_ITEMS, arm, kl, write_inputs

from paceline.errors import ConfigError, LabError
from paceline.lab.experiment.process import StoppedError
from paceline.lab.experiment.quality import (
    compare_nodes,
    divergence_path,
    measure_divergence,
    score_node,
    score_path,
    sets_of,
    summary,
    texts_of,
)
from paceline.lab.experiment.reporter import Silent
from paceline.lab.experiment.results import NodeResult
from paceline.lab.experiment.spec import Loaded, load_experiment
from paceline.lab.experiment.visit import Visitor
from paceline.lab.load import probe
from paceline.lab.mock import MockServer, load_script
from paceline.lab.quality import read_score
from paceline.lab.workload import load_spec

LOAD = {
    "num_requests": 8,
    "stream": [{"arrival": {"kind": "closed", "slots": 2}, "input": 16, "output": 4}],
}


def loaded(folder: Path, **quality) -> Loaded:
    write_inputs(folder)
    table = {"sets": [{"name": "sums.jsonl"}], "texts": "texts.txt", **quality}
    whole = {"server": {"base": {"model": "m"}}, "energy": {"off": True}, "quality": table, **LOAD}
    return load_experiment(whole, folder)


def score(folder: Path, spec: Loaded, node: str, script: dict, stop: threading.Event | None = None) -> list[str]:
    """What was said."""
    said: list[str] = []
    with MockServer(load_script(script)) as mock:
        target = asyncio.run(probe(mock.url))
        score_node(folder, spec, node, target, load_spec(LOAD), said.append, stop or threading.Event())
    return said


def test_a_wrong_arm_is_worse_than_a_right_one(tmp_path):
    spec = loaded(tmp_path)
    assert score(tmp_path, spec, "base", arm()) == [f"quality: sums, {NUM_ITEMS} items, alone"]
    score(tmp_path, spec, "wrong", arm(answer="13"))
    assert score(tmp_path, spec, "base", arm(answer="13")) == []  # scored once
    found = compare_nodes(tmp_path, spec, "base", "wrong")
    assert [c.answer for c in found.comparisons] == ["worse"]
    assert [s.accuracy.value for s in found.scores] == [0.0]
    assert compare_nodes(tmp_path, spec, "base", "none").notes == {"quality": "no set was scored at both nodes"}
    told = summary(tmp_path, spec, "base")["sums"]
    assert (told["num_items"], told["num_failed"], told["mode"]) == (NUM_ITEMS, 0, "alone")
    assert (tmp_path / told["file"]).is_file()


def test_a_score_under_load_says_what_ran_beside(tmp_path):
    spec = loaded(tmp_path, mode="under_load", max_concurrency=2)
    score(tmp_path, spec, "base", arm(service={"ttft_ms": 5, "tpot_ms": 5}))
    found = read_score(score_path(tmp_path, "base", "sums"))
    assert found.mode == "under load"
    assert any("a load ran beside" in note for note in found.notes)
    assert found.accuracy.value == 1.0


def test_two_nodes_are_compared_token_by_token(tmp_path):
    spec = loaded(tmp_path)
    with MockServer(load_script(arm(sure=0.9))) as a, MockServer(load_script(arm(sure=0.6))) as b:
        measure_divergence(tmp_path, "child", texts_of(spec), (a.url, b.url), None, threading.Event())
    assert [path.name for path in divergence_path(tmp_path, "child").parent.iterdir()] == ["divergence.json"]
    found = compare_nodes(tmp_path, spec, "base", "child").divergence
    assert found is not None
    assert found.method == "prompt_logprobs"
    assert found.buckets[0].num_positions == 4
    assert found.buckets[0].kl.value == pytest.approx(kl(0.9, 0.6), rel=1e-6)


def test_told_to_stop_it_stops_at_once_and_keeps_nothing(tmp_path):
    spec, stop = loaded(tmp_path), threading.Event()
    stop.set()
    slow = arm()
    slow["rules"][0]["reply"]["chunks"][0]["delay_ms"] = 60_000
    with pytest.raises(StoppedError):
        score(tmp_path, spec, "base", slow, stop)
    assert not score_path(tmp_path, "base", "sums").exists()


def test_a_quality_that_cannot_be_had_leaves_the_points_alone(tmp_path):
    spec = loaded(tmp_path)
    broken = {"rules": [{"match": {"contains": "sum item"}, "reply": {"status": 500}}]}
    with pytest.raises(LabError, match="no item of sums could be asked"):
        score(tmp_path, spec, "base", broken)
    stop = threading.Event()
    visitor = Visitor(spec, tmp_path, None, load_spec(LOAD), Silent(), lambda *_: None, stop)  # type: ignore[arg-type]
    with MockServer(load_script(broken)) as mock:
        target = asyncio.run(probe(mock.url))
        for _ in range(2):
            visitor._score(NodeResult(name="base"), target)
        asked = sum(entry.path == "/v1/chat/completions" for entry in mock.log())
    assert asked <= NUM_ITEMS + 8  # the probe's, and one try


def test_two_sets_of_one_name_are_refused(tmp_path):
    (tmp_path / "more").mkdir()
    write_inputs(tmp_path / "more")
    with pytest.raises(ConfigError, match="two sets"):
        sets_of(loaded(tmp_path, sets=[{"name": "sums.jsonl"}, {"name": "more/sums.jsonl"}]))
