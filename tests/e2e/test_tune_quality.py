"""An experiment whose child is as fast as its parent and answers worse: its gates refuse it."""

from __future__ import annotations

import json
import sys

import pytest
from tests.fakes.lab.quality_arms import NUM_ITEMS, arm, kl, write_inputs

from paceline.contracts.artefact import Answer
from paceline.lab.experiment.runner import run_experiment
from paceline.lab.experiment.spec import load_experiment

SPEC = """
num_requests = 8
[experiment]
name = "quality"
repeats = 1
[server]
kind = "command"
argv = {argv}
base = {{ script = "{folder}/base.json" }}
groups = {{ script = "kv" }}
[start]
cold = 0
[energy]
off = true
[slo]
chat = {{ ttft_ms = 60000, share = 0.9 }}
[[stream]]
class = "chat"
arrival = {{ kind = "closed", slots = 2 }}
input = 16
output = 3
[graph]
worse = {{ group = "kv", change = {{ script = "{folder}/worse.json" }} }}
[quality]
sets = [{{ name = "sums.jsonl" }}]
mode = "under_load"
max_concurrency = 2
texts = "texts.txt"
[gates.quality]
max_kl = 0.01
[gates.goodput]
min_ratio = 0.01
[gates.cold_start]
warm_s = 60
min_starts = 1
"""


def test_a_child_that_answers_worse_is_refused_by_its_gates(tmp_path):
    write_inputs(tmp_path)
    service = {"ttft_ms": 5, "tpot_ms": 5}
    (tmp_path / "base.json").write_text(json.dumps(arm(service=service)))
    (tmp_path / "worse.json").write_text(json.dumps(arm(answer="13", sure=0.6, service=service)))
    argv = json.dumps([sys.executable, "-m", "paceline.lab.mock", "--port", "{port}"])
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(argv=argv, folder=tmp_path))
    result = run_experiment(load_experiment(path), tmp_path / "out")
    assert result.status == "complete"
    assert {point.status for point in result.points} == {"ok"}
    shares = {node.name: node.quality["sums"] for node in result.nodes}
    assert {name: share["accuracy"]["value"] for name, share in shares.items()} == {"base": 1.0, "worse": 0.0}
    assert {(share["num_items"], share["mode"]) for share in shares.values()} == {(NUM_ITEMS, "under load")}

    verdict = result.edges[0].verdict
    assert verdict.answer is Answer.FAIL
    by_subject = {(gate.gate, gate.subject): gate for gate in verdict.gates}
    assert by_subject["quality", "sums (right answers)"].answer is Answer.FAIL
    divergence = by_subject["quality", "KL, positions all"]
    assert divergence.answer is Answer.FAIL
    assert divergence.estimate is not None
    assert divergence.estimate.value == pytest.approx(kl(0.9, 0.6), rel=1e-6)
    assert any(gate.gate == "goodput" for gate in verdict.gates)
    assert by_subject["cold_start", "warm"].estimate is not None
    assert result.best == "base"
