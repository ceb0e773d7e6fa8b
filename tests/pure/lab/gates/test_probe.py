"""The timing probe's verdict on times that are drawn, and the probe itself on a server that leaks or does not."""

import random

import pytest
from tests.fakes.lab.toy_lm import ToyServer

from paceline.contracts.artefact import Answer
from paceline.errors import ConfigError, LabError
from paceline.lab.gates.probe_result import ProbeResult, visible_order_share
from paceline.lab.gates.timing_probe import probe_prefix_timing


def drawn(seed, *, leak=0.0, hit=0.05, n=40, **fields):
    draw = random.Random(seed)

    def times(saved):
        return [0.100 - saved + draw.gauss(0, 0.005) for _ in range(n)]

    return ProbeResult(control_s=times(0), test_s=times(leak), own_s=times(hit), **fields)


def test_without_a_leak_most_probes_pass_and_hardly_any_fails():
    found = [drawn(seed).gate_result().answer for seed in range(60)]
    assert found.count(Answer.FAIL) <= 3  # 1 % each
    assert found.count(Answer.PASS) >= 45


def test_a_leak_is_found():
    for seed in range(10):
        result = drawn(seed, leak=0.05).gate_result()
        assert result.answer is Answer.FAIL
        assert result.estimate.value == pytest.approx(0.05, abs=0.01)
        assert result.evidence["p"] < 0.001


def test_a_probe_that_cannot_see_its_own_hits_says_so():
    result = drawn(1, hit=0.0).gate_result()
    assert result.answer is Answer.INCONCLUSIVE
    assert "sees nothing" in result.sentence


def test_few_rounds_are_inconclusive_and_usage_alone_convicts():
    assert drawn(1, n=8).gate_result().answer is Answer.INCONCLUSIVE
    told = drawn(1, cached_tokens={"control": 0, "test": 640, "own": 640}).gate_result()
    assert told.answer is Answer.FAIL
    assert "640 tokens" in told.sentence
    shared = drawn(1, cached_tokens={"control": 64, "test": 64, "own": 640}).gate_result()  # the same template
    assert shared.answer is Answer.PASS


def test_what_can_be_seen_grows_with_the_rounds():
    assert visible_order_share(12, 12) > visible_order_share(40, 40) > visible_order_share(400, 400) > 0.5


@pytest.mark.parametrize("shared", [False, True])
def test_the_probe_asks_what_it_says(shared, monkeypatch):
    asked = []

    def answer(_server, _path, body):
        asked.append(body["prompt"])
        return 200, {
            "choices": [{"text": "w"}],
            "usage": {
                "prompt_tokens": 30,
                "prompt_tokens_details": {"cached_tokens": 24 if shared and asked.count(body["prompt"]) > 1 else 0},
            },
        }

    monkeypatch.setattr(ToyServer, "answer", answer)
    with ToyServer() as server:
        found = probe_prefix_timing(server.url, "a", "b", num_rounds=3, num_words=20)
    assert found.num_rounds == 3
    assert len(asked) == 5 * 6  # two rounds to warm up, two calls an arm
    assert len(set(asked)) == 5 * 4  # A and B differ in `control`, and share a prompt in the other two
    assert found.cached_tokens == {"control": 0, "test": 72 if shared else 0, "own": 72 if shared else 0}
    assert found.gate_result().answer is Answer.INCONCLUSIVE


def test_one_key_twice_and_a_server_that_refuses_are_errors():
    with pytest.raises(ConfigError, match="two tenants"):
        probe_prefix_timing("http://127.0.0.1:9", "a", "a")
    with pytest.raises(LabError, match="lists no model"):
        probe_prefix_timing("http://127.0.0.1:9", "a", "b")
