"""PL201: what the prefix cache knew before the run."""

from tests.pure.lab.metrics.logs import info, steady_log
from tests.pure.planner.lint.worlds import config, found, run, stored, with_engine, workload

from paceline.assemble.lint.stored import run_facts
from paceline.contracts.artefact import TargetInfo
from paceline.contracts.lint import Severity
from paceline.planner.lint import lint


def test_a_workload_without_salt_or_flush_and_with_them():
    facts = config(workload(cache={"protocol": ["verify"]}))
    (finding,) = found(facts, "PL201")
    assert finding.severity is Severity.WARNING
    tokens = sum(r.num_input for r in facts.load.requests)
    assert {e.name: e.value for e in finding.evidence}["prompt tokens"] == tokens
    assert found(config(workload(**finding.fix.workload)), "PL201") == []
    assert "PL201" in lint(with_engine(facts, prefix_caching=False)).skipped


def log(prefix="", hit=0):
    records = steady_log(20)
    for one in records:
        one.prompt_sha256 = f"{prefix}{one.id}"
        one.num_input_asked = one.prompt_tokens = 100
        one.cached_tokens = hit
    return records


def asked_again(prefix, start=None, **head):
    before = stored(log(), info(name="monday"))
    head = info(name="tuesday", **head)
    head.start = {} if start is None else start
    after = stored(log(prefix, 90), head)
    return found(run_facts(after, against=(before,)), "PL201")


def test_prompts_of_an_earlier_run_of_the_same_server():
    (finding,) = asked_again("", salt="s")
    assert finding.severity is Severity.ERROR
    assert finding.subject == "monday"
    assert {e.name: e.value for e in finding.evidence}["prompts asked before"] == 20
    assert asked_again("other ", salt="s") == []


def test_a_flush_a_fresh_server_and_another_one_remember_nothing():
    assert asked_again("", salt="s", cache={"flushed": True}) == []
    assert asked_again("", salt="s", start={"kind": "warm", "ready_s": 1.0}) == []
    before = stored(log(), info(name="monday"))
    head = info(name="tuesday", salt="s")
    head.target = TargetInfo(url="http://127.0.0.1:2", model="m")
    assert found(run_facts(stored(log(), head), against=(before,)), "PL201") == []


def test_more_hits_than_the_plan_explains_without_a_salt():
    (finding,) = found(run(log(hit=90)), "PL201")
    assert "90 %" in finding.sentence
    assert found(run(log(hit=90), salt="fresh"), "PL201") == []
    assert found(run(log(hit=20)), "PL201") == []  # a template's head is a hit as well
