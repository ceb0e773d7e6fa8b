"""One measured point against the mock: what it asks, what it stores, and the cache's state as a part of it."""

from __future__ import annotations

import asyncio
import json
import threading

import msgspec
import pytest

from paceline.contracts.artefact import RequestRecord, Window
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest
from paceline.errors import LabError
from paceline.lab.artefact import is_intact, read_plan, read_run
from paceline.lab.experiment.cache_protocol import prepare_cache, verify_cache
from paceline.lab.experiment.counts import Counts
from paceline.lab.experiment.measure import MeasureOptions, measure
from paceline.lab.load import LoadOptions, probe
from paceline.lab.mock import Flavour, Match, MockServer, Reply, Rule, Script, ScriptChunk, Service
from paceline.lab.workload import Content, WordCounter, load_spec, make_plan, named, primers

QUICK = MeasureOptions(
    load=LoadOptions(num_processes=0), calibrate=False, energy=(), fingerprint={"host": "test"}, counts=Counts()
)
SLO = {"chat": {"ttft_ms": 60_000, "tpot_ms": 60_000, "validators": ["not_truncated"]}}


def workload(cache=None, prefix=None, **fields):
    stream = {"class": "chat", "arrival": {"kind": "closed", "slots": 4}, "input": 96, "output": 3}
    if prefix:
        stream["prefix"] = prefix
    return load_spec({"slo": SLO, "num_requests": 24, "stream": [stream], "cache": cache or {}, **fields})


@pytest.fixture
def mock():
    script = Script(flavour=Flavour.PACELINE, service=Service(prefix_cache=True))
    with MockServer(script) as server:
        yield server


@pytest.fixture
def target(mock):
    return asyncio.run(probe(mock.url))


def test_a_point_leaves_a_whole_artefact(target, tmp_path):
    run = measure(target, workload(), seed=1, out=tmp_path / "run", options=QUICK)
    assert run.info.status == "complete"
    assert is_intact(tmp_path / "run")
    assert len(run.records) == len(read_plan(tmp_path / "run")) == 24
    assert {r.outcome for r in run.records} == {Outcome.OK}
    assert all(r.valid == {"not_truncated": True} for r in run.records)
    assert run.metrics.whole.attainment.value == 1.0
    assert run.info.window.end_ns == max(r.t_close_ns for r in run.records)
    assert run.info.energy == {}
    assert run.info.fingerprint == {"host": "test"}
    assert run.server_metrics
    assert run.server_metrics[0]["common"]["num_running"] == 0.0
    assert run.info.config_source in ("resolved", "unknown")
    with pytest.raises(LabError, match="holds a run already"):
        measure(target, workload(), seed=1, out=tmp_path / "run", options=QUICK)


def test_a_validator_that_does_not_apply_to_a_request_stands_in_no_way(target, tmp_path):
    """The class of a mixed stream asks for JSON; plain chats are judged by what they can show."""
    spec = workload(slo={"chat": {"ttft_ms": 60_000, "validators": ["json"]}})
    run = measure(target, spec, seed=1, out=tmp_path / "run", options=QUICK)
    assert all(r.valid == {"not_truncated": True} for r in run.records)
    assert run.metrics.whole.attainment.value == 1.0


ANSWERS = {  # a word of each request of content `structured`, and an answer to it
    "baker": {"name": "Ada Berg", "job": "baker", "town": "Lund", "age": 41},
    "kettle": {"verdict": "mixed", "score": 3, "reason": "the lid came off"},
    "choir": {"title": "practice", "place": "town hall", "hour": 19, "minutes": 120},
    "tomato": {"dish": "soup", "serves": 2, "ingredients": ["tomatoes", "salt"]},
    "photo": {"area": "crash", "urgent": True, "summary": "closes on photos"},
    "mill,": {"steps": [{"turn": "left", "metres": 200}]},
}


def test_answers_cut_at_their_limit_are_counted_apart(tmp_path):
    def reply(value, reason="stop", size=None):
        return Reply(chunks=(ScriptChunk(text=json.dumps(value)[:size]),), finish_reason=reason)

    rules = [Rule(match=Match(contains="route", every=2), reply=reply({"steps": 1}))]  # whole, and wrong
    rules += [Rule(match=Match(contains=w, every=3), reply=reply(v, "length", -4)) for w, v in ANSWERS.items()]
    rules += [Rule(match=Match(contains=word), reply=reply(value)) for word, value in ANSWERS.items()]
    spec = workload(slo={"chat": {"ttft_ms": 60_000, "validators": ["json", "schema"]}}, num_requests=48)
    stream = msgspec.structs.replace(
        spec.streams[0], content="structured", output=named("structured")[0].streams[0].output
    )
    with MockServer(Script(flavour=Flavour.PACELINE, rules=tuple(rules))) as server:
        target = asyncio.run(probe(server.url))
        run = measure(
            target, msgspec.structs.replace(spec, streams=(stream,)), seed=1, out=tmp_path / "run", options=QUICK
        )
    whole, cut = run.metrics.whole, [r for r in run.records if r.reason == "length"]
    assert 0 < len(cut) < len(run.records)
    assert whole.num_cut == len(cut)
    assert whole.valid["json"] == (48 - len(cut), 48 - len(cut))
    passed, judged = whole.valid["schema"]
    assert judged == 48 - len(cut)
    assert 0 < passed < judged
    assert whole.attainment.value == pytest.approx(passed / 48, rel=1e-6)  # who was cut got nothing to use


def test_a_second_run_of_the_same_seed_gets_nothing_from_the_cache(target, tmp_path):
    """A salt of its own in each run's texts: the same spec twice, no faster the second time."""
    spec = workload({"protocol": ["salt", "verify"]})
    runs = [measure(target, spec, seed=1, out=tmp_path / str(i), options=QUICK) for i in range(2)]
    assert runs[0].info.salt != runs[1].info.salt
    assert [r.num_input_asked for r in runs[0].records] == [r.num_input_asked for r in runs[1].records]
    for run in runs:
        assert run.info.cache["ok"] is True
        assert run.info.cache["hit"] <= 0.02


def test_without_a_salt_the_second_run_breaks_the_protocol(target, tmp_path):
    spec = workload({"protocol": ["verify"]})
    first, second = (measure(target, spec, seed=1, out=tmp_path / str(i), options=QUICK) for i in range(2))
    assert first.info.cache["ok"] is True
    assert second.info.cache["ok"] is False
    assert "breaks the cache protocol" in second.info.cache["sentence"]
    assert [c.code for c in first.metrics.cautions if c.invalidates] == []
    (broken,) = [c for c in second.metrics.cautions if c.invalidates]
    assert broken.code == "cache_protocol"
    assert broken.sentence == f"{second.info.cache['sentence']}."
    assert is_intact(second.path)


def test_shared_prefixes_are_primed_and_hit_as_planned(target, tmp_path):
    spec = workload({"protocol": ["salt", "flush", "prime", "verify"]}, prefix={"groups": 3, "tokens": 48})
    run = measure(target, spec, seed=1, out=tmp_path / "run", options=QUICK)
    cache = run.info.cache
    assert cache["flushed"] is True
    assert cache["num_primed"] == cache["num_prefixes"] == 3
    assert cache["hit"] == pytest.approx(32 / 96)
    assert cache["ok"] is True


def test_what_a_server_cannot_do_is_written_down(tmp_path):
    with MockServer(Script(flavour=Flavour.OPENAI)) as mock:
        target = asyncio.run(probe(mock.url))
        spec = workload({"protocol": ["salt", "flush", "verify"]})
        run = measure(target, spec, seed=1, out=tmp_path / "run", options=msgspec.structs.replace(QUICK, counts=None))
    assert run.info.cache["flushed"] is False
    assert "no call" in run.info.cache["not_flushed_because"]
    assert run.info.cache["ok"] is None
    assert "not verified" in run.info.cache["sentence"]
    assert run.server_metrics == []
    assert run.info.config_source == "unknown"


def test_a_rate_scales_the_open_streams(target, tmp_path):
    stream = {"class": "chat", "arrival": {"kind": "constant", "rate": 1}, "input": 32, "output": 2}
    spec = load_spec({"slo": SLO, "duration_s": 1, "stream": [stream]})
    run = measure(target, spec, seed=1, out=tmp_path / "run", rate=12.0, options=QUICK)
    assert run.info.window == Window(start_ns=0, end_ns=1_000_000_000)
    assert len(run.records) == pytest.approx(12, abs=1)


def test_an_interrupted_point_is_partial_and_valid(tmp_path):
    with MockServer(Script(flavour=Flavour.PACELINE, service=Service(ttft_ms=50, tpot_ms=5))) as mock:
        target = asyncio.run(probe(mock.url))
        stop = threading.Event()

        def seen(progress) -> None:
            if progress.num_done:
                stop.set()

        stream = {"class": "chat", "arrival": {"kind": "closed", "slots": 2}, "input": 32, "output": 4}
        spec = load_spec({"slo": SLO, "num_requests": 5000, "stream": [stream]})
        measure(target, spec, seed=1, out=tmp_path / "run", options=QUICK, on_progress=seen, stop=stop)
    run = read_run(tmp_path / "run")
    assert run.info.status == "partial"
    assert is_intact(tmp_path / "run")
    assert any(r.outcome is Outcome.OK for r in run.records)


def test_primers_ask_each_prefix_once_with_words_of_their_own():
    spec = workload({"protocol": ["prime"]}, prefix={"groups": 4, "tokens": 48})
    plan = make_plan(spec, seed=1, salt="s")
    content = Content(spec, seed=1, salt="s", counter=WordCounter())
    asyncio.run(content.prepare())
    found = primers(plan)
    assert sorted(p.prefix_group for p in found) == sorted({r.prefix_group for r in plan.requests})
    first = {r.prefix_group: r for r in reversed(plan.requests)}
    for primer in found:
        ours = content.render(primer).messages
        theirs = content.render(first[primer.prefix_group]).messages
        assert ours[0] == theirs[0]
        assert ours[1] != theirs[1]
        assert primer.num_output_tokens == 1


def records(*cached: int) -> list[RequestRecord]:
    return [
        RequestRecord(id=i, stream="chat", t_plan_ns=i, prompt_tokens=100, cached_tokens=c, num_prefix_asked=48)
        for i, c in enumerate(cached)
    ]


def test_the_expectation_of_the_spec_decides():
    spec = workload({"protocol": ["verify"], "expect_hit": {"target": 0.35, "tol": 0.02}})
    window = Window(start_ns=0, end_ns=100)
    assert verify_cache({}, spec, (), records(35, 34, 36), window)["ok"] is True
    assert verify_cache({}, spec, (), records(40, 40), window)["ok"] is False
    outside = msgspec.structs.replace(window, end_ns=1)
    assert verify_cache({}, spec, (), records(35, 99), outside)["hit"] == pytest.approx(0.35)


def verified(requests, cached: list[int], **done):
    spec = workload({"protocol": ["verify"]})
    return verify_cache(done, spec, requests, records(*cached), Window(start_ns=0, end_ns=100))


def test_shared_passages_may_come_from_the_cache_and_need_not():
    """Half of the second and third prompt was sent by the first: what a trace's blocks, or documents, look like."""

    def planned(number: int, **more) -> PlannedRequest:
        return PlannedRequest(id=number, stream="chat", num_input_tokens=100, **more)

    plan = [planned(i, shared=(1, 2 + i), num_shared_tokens=50) for i in range(3)]
    for cached in ([0, 50, 50], [0, 48, 48], [0, 0, 0]):
        assert verified(plan, cached)["ok"] is True
    found = verified(plan, [50, 50, 50])  # the first one's too: an earlier run helps
    assert found["ok"] is False
    assert "0.0% to 33.3%" in found["sentence"]
    prefix = [planned(i, prefix_group=0, num_prefix_tokens=48) for i in range(3)]
    assert verified(prefix, [0, 48, 48])["ok"] is True  # not primed: the first fills the cache
    assert verified(prefix, [48, 48, 48])["ok"] is False
    assert verified(prefix, [48, 48, 48], num_primed=1)["ok"] is True
    assert verified(prefix, [0, 0, 0], num_primed=1)["ok"] is False


def test_turns_imply_no_figure(target):
    stream = {"arrival": {"kind": "closed", "slots": 1}, "input": 32, "output": 2, "turns": {"max": 2}}
    spec = load_spec({"num_requests": 4, "stream": [stream], "cache": {"protocol": ["verify"]}})
    plan = make_plan(spec, seed=1)
    done = prepare_cache(target, spec, plan, Content(spec, 1, ""), LoadOptions(num_processes=0))
    found = verify_cache(done, spec, plan.requests, records(10, 20), Window(start_ns=0, end_ns=100))
    assert found["ok"] is None
    assert "implies no figure" in found["sentence"]
