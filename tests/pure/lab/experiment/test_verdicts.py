"""Which gates an edge is asked: limits of KL and top-1 where texts are compared, and nowhere else."""

import pytest
from tests.fakes.lab.quality_arms import write_inputs

from paceline.contracts.artefact import Answer
from paceline.lab.experiment.results import EdgeResult, NodeResult
from paceline.lab.experiment.spec import load_experiment
from paceline.lab.experiment.verdicts import gate_edge

LIMITS = {"max_kl": 0.02, "min_top1": 0.9}
LOAD = {"num_requests": 8, "stream": [{"arrival": {"kind": "closed", "slots": 2}, "input": 16, "output": 4}]}


def judged(folder, group, quality, gates):
    """The edge after gates saw it; nothing was scored or compared."""
    write_inputs(folder)
    whole = {"server": {"base": {"model": "m"}}, "energy": {"off": True}, "gates": gates, **LOAD}
    loaded = load_experiment(whole | ({"quality": quality} if quality else {}), folder)
    nodes = [NodeResult(name=name) for name in ("base", "child")]
    edge = EdgeResult(parent="base", child="child", group=group, answer="better", sentence="")
    return gate_edge(folder, edge, loaded, *nodes, [], [])


@pytest.mark.parametrize("group", ["batch", "prefix"])
def test_an_edge_whose_texts_nobody_reads_is_asked_nothing_of_them(tmp_path, group):
    edge = judged(tmp_path, group, {"texts": "texts.txt"}, {"quality": LIMITS})
    assert edge.verdict.gates == ()
    assert edge.verdict.sentence == "no gates were asked for"


@pytest.mark.parametrize("group", ["kv", "quantisation"])
def test_an_edge_that_may_move_numbers_is_asked(tmp_path, group):
    edge = judged(tmp_path, group, {"texts": "texts.txt"}, {"quality": LIMITS})
    assert [gate.subject for gate in edge.verdict.gates] == ["divergence"]
    assert edge.verdict.answer is Answer.INCONCLUSIVE


def test_other_gates_and_sets_are_asked_of_every_edge(tmp_path):
    both = {"texts": "texts.txt", "sets": [{"name": "sums.jsonl"}]}
    asked = {"quality": LIMITS | {"sets": ["sums"]}, "goodput": {"min_rps": 1.0}}
    found = [(gate.gate, gate.subject) for gate in judged(tmp_path, "batch", both, asked).verdict.gates]
    assert ("quality", "sums") in found
    assert ("quality", "divergence") not in found
    assert any(gate == "goodput" for gate, _ in found)


def test_limits_without_texts_are_not_measured_on_any_edge(tmp_path):
    edge = judged(tmp_path, "batch", None, {"quality": LIMITS})
    assert edge.verdict.answer is Answer.INCONCLUSIVE
    assert "[quality]" in edge.verdict.gates[0].sentence
