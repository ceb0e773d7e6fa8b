from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pure.lab.workload.specs import spec_of

from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError
from paceline.lab.workload import load_spec, make_plan, named, parse_slo, spec_to_dict, with_slo
from paceline.lab.workload.arrivals import Gamma
from paceline.lab.workload.lengths import Fixed, Lognormal

FULL = """
seed = 7
duration_s = 40
warmup_s = 5
experiment = { name = "ours alone knows what this is" }

[slo]
chat  = { ttft_ms = 500, tpot_ms = 40, share = 0.9, validators = ["not_truncated"] }
batch = { e2e_s = 60, share = 0.99 }

[[stream]]
class = "chat"
tenant = "gold"
priority = 10
arrival = { kind = "gamma", rate = 3.0, cv = 2.0 }
input   = { kind = "lognormal", p50 = 100, p99 = 700 }
output  = 30
prefix  = { groups = 20, tokens = 64, zipf = 1.1 }
turns   = { mean = 3, max = 6, think_s = 8 }
faults  = { cancel_share = 0.02, timeout_s = 30, disconnect_share = 0.01 }

[[stream]]
class = "batch"
arrival = { kind = "constant", rate = 0.5 }
input = { kind = "uniform", min = 10, max = 20 }
output = { kind = "histogram", edges = [1, 10, 100], weights = [3, 1] }
streaming_share = 0.0

[cache]
protocol = ["salt", "flush", "prime", "verify"]
expect_hit = { target = 0.35, tol = 0.02 }
"""


def test_the_whole_form_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mixed.toml"
    file.write_text(FULL, encoding="utf-8")
    spec = load_spec(file)
    assert (spec.name, spec.seed, spec.span_s) == ("mixed", 7, 45)
    chat, batch = spec.streams
    assert (chat.name, chat.slo_class, chat.tenant, chat.priority) == ("chat", "chat", "gold", 10)
    assert chat.arrival == Gamma(rate=3.0, cv=2.0)
    assert chat.input == Lognormal(p50=100, p99=700)
    assert chat.output == Fixed(tokens=30)
    assert batch.streaming_share == 0
    assert spec.classes == [
        SloClass(name="chat", ttft_s=0.5, tpot_s=0.04, share=0.9, validators=("not_truncated",)),
        SloClass(name="batch", e2e_s=60, share=0.99),
    ]
    assert spec.cache.expect_hit is not None
    assert make_plan(spec).requests


def test_a_spec_survives_as_plain_values(tmp_path: Path) -> None:
    file = tmp_path / "mixed.toml"
    file.write_text(FULL, encoding="utf-8")
    spec = load_spec(file)
    assert load_spec(spec_to_dict(spec)) == spec


@pytest.mark.parametrize(
    ("change", "place", "hint"),
    [
        ({"durration_s": 3}, "durration_s", "duration_s"),
        ({"slo": {"default": {"tttft_ms": 3}}}, "slo.default.tttft_ms", "ttft_ms"),
        ({"cache": {"protokol": []}}, "cache.protokol", "protocol"),
        ({"cache": {"expect_hit": {"targt": 0.1}}}, "cache.expect_hit.targt", "target"),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest(change: dict[str, Any], place: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(**change)
    assert place in str(caught.value)
    assert f"did you mean {hint}?" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "place", "hint"),
    [
        ({"arival": {}}, "stream[0].arival", "arrival"),
        ({"arrival": {"kind": "poison", "rate": 1}}, "stream[0].arrival.kind", "poisson"),
        ({"arrival": {"kind": "gamma", "rat": 1, "cv": 1}}, "stream[0].arrival.rat", "rate"),
        ({"input": {"kind": "lognormal", "p5": 1, "p99": 2}}, "stream[0].input.p5", "p50"),
        ({"faults": {"cancel": 0.1}}, "stream[0].faults.cancel", "cancel_share"),
        ({"prefix": {"group": 1, "tokens": 4}}, "stream[0].prefix.group", "groups"),
        ({"turns": {"mx": 1}}, "stream[0].turns.mx", "max"),
    ],
)
def test_an_unknown_key_of_a_stream_too(change: dict[str, Any], place: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(change)
    assert place in str(caught.value)
    assert f"did you mean {hint}?" in str(caught.value)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"arrival": {"rate": 1.0}}, "has no kind"),
        ({"arrival": {"kind": "poisson"}}, "wrong value"),
        ({"arrival": 3}, "must be a table"),
        ({"arrival": {"kind": "poisson", "rate": "5"}}, "wrong value"),
        ({"arrival": {"kind": "poisson", "rate": -5}}, "must be above 0"),
        ({"input": None}, "no input length"),
        ({"content": "musical"}, "content is not known"),
        ({"content": "token_ids"}, "belong together"),
        ({"content": "tools", "endpoint": "completions"}, "are chat requests"),
        ({"content": "file"}, "needs a file"),
        ({"faults": {"cancel_share": 0.8, "disconnect_share": 0.8}}, "add up to more than 1"),
        ({"faults": {"timeout_share": 0.5}}, "needs timeout_s"),
        ({"faults": {"cancel_share": 0.5}, "streaming_share": 0.5}, "only streamed requests"),
        ({"streaming_share": 1.5}, "between 0 and 1"),
        ({"prefix": {"groups": 0, "tokens": 4}}, "prefix needs groups"),
        ({"documents": {"pool": 2, "per_request": 3, "tokens": 5}}, "more than the pool"),
        ({"turns": {"max": 2, "mean": 3}}, "turns needs"),
        ({"turns": {"max": 2}, "endpoint": "completions"}, "sessions are chats"),
        ({"arrival": {"kind": "closed", "slots": 2}}, "needs a number of requests"),
        ({"token_id_range": [5, 5]}, "holds no ids"),
        ({"class": "chat"}, "its class has no targets"),
    ],
)
def test_what_cannot_be_run_is_refused(stream: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        spec_of(stream, slo={"default": {"e2e_s": 3}})


def test_unstreamed_requests_may_only_have_an_e2e_target() -> None:
    slo = {"default": {"ttft_ms": 500, "e2e_s": 3}, "whole": {"e2e_s": 3}}
    with pytest.raises(ConfigError, match="not streamed have no ttft"):
        spec_of({"streaming_share": 0.5}, slo=slo)
    spec = spec_of({"streaming_share": 0.5, "unstreamed_class": "whole"}, slo=slo)
    for request in make_plan(spec).requests:
        assert request.slo_class == ("default" if request.streamed else "whole")


def test_a_load_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="no end"):
        spec_of(duration_s=None)
    with pytest.raises(ConfigError, match="needs duration_s"):
        spec_of({"arrival": {"kind": "ramp", "start": 1, "end": 2}}, duration_s=None, num_requests=5)
    with pytest.raises(ConfigError, match="no stream"):
        load_spec({"duration_s": 3})


def test_files_that_are_no_spec(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_spec(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_spec(tmp_path / "bad.toml")


def test_files_named_in_a_spec_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n", encoding="utf-8")
    stream = 'arrival = { kind = "poisson", rate = 9 }\ncontent = "file"\nfile = "prompts.txt"\noutput = 4\n'
    text = f"duration_s = 5\n[[stream]]\n{stream}"
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    assert load_spec(tmp_path / "a.toml").streams[0].file == str(tmp_path / "prompts.txt")


def test_targets_on_a_command_line() -> None:
    assert parse_slo("ttft=1s,tpot=60ms") == SloClass(ttft_s=1.0, tpot_s=0.06)
    assert parse_slo("e2e=2.5s, share=0.9", "x") == SloClass(name="x", e2e_s=2.5, share=0.9)


@pytest.mark.parametrize("wrong", ["ttft=1", "tftt=1s", "ttft", "", "share=0.9", "ttft=-1s", "ttft=1s,share=7"])
def test_targets_that_are_not_understood(wrong: str) -> None:
    with pytest.raises(ConfigError):
        parse_slo(wrong)


def test_targets_given_on_top_reach_every_class() -> None:
    slo = parse_slo("ttft=1s,tpot=60ms,e2e=9s")
    tenants = with_slo(named("tenants")[0], slo)
    assert {(c.name, c.ttft_s, c.tpot_s) for c in tenants.classes} == {
        (n, 1.0, 0.06) for n in ("gold", "silver", "bronze")
    }
    whole = with_slo(named("non-stream")[0], slo)
    assert [(c.ttft_s, c.tpot_s, c.e2e_s) for c in whole.classes] == [(None, None, 9.0)]
    assert with_slo(named("structured")[0], slo).classes[0].validators == ("json", "schema")
    assert load_spec(spec_to_dict(whole)) == whole
