"""`paceline quality` and `paceline gate`: from the command line to numbers and exit codes."""

import json

import pytest
from tests.fakes.lab.gate_runs import answered
from tests.fakes.lab.toy_lm import WORDS, ToyLm, ToyServer
from typer.testing import CliRunner

from paceline.cli import gate, quality
from paceline.contracts.artefact import RunInfo, TargetInfo, Window
from paceline.contracts.workload import SloClass
from paceline.lab.artefact import write_run


def run(app, *arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(" ".join(WORDS[i : i + 20]) for i in (0, 10, 20)))
    return path


def scored(tmp_path, name, chat):
    items = [{"id": str(i), "rule": "exact", "prompt": f"say {i}", "answer": str(i)} for i in range(40)]
    (tmp_path / "toy.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    out = tmp_path / f"{name}.json"
    with ToyServer(chat=chat) as server:
        found = run(quality.app, "score", tmp_path / "toy.jsonl", "--url", server.url, "--out", out)
    assert found.exit_code == 0, found.output
    return found, out


def right(messages, _):
    return messages[-1]["content"].removeprefix("say ")


def test_scores_are_shown_stored_and_compared(tmp_path):
    shown, good = scored(tmp_path, "good", right)
    assert "100 [" in shown.output
    assert "40 items (alone)" in shown.output
    _, bad = scored(tmp_path, "bad", lambda *_: "no")
    worse = run(quality.app, "compare", good, bad)
    assert worse.exit_code == 1
    assert "40 lost and 0 won" in worse.output
    assert run(quality.app, "compare", bad, good).exit_code == 0
    assert run(quality.app, "compare", good, good).exit_code == 2  # 40 items do not exclude a loss of two points


def test_sets_are_listed():
    found = run(quality.app, "sets")
    assert "basics" in found.output
    assert "refusals" in found.output


def test_kl_agreement_and_perplexity(tmp_path, text):
    with ToyServer(ToyLm()) as a, ToyServer(ToyLm(noise=0.5)) as b:
        pair = ("--url", b.url, "--reference", a.url)
        kl = run(quality.app, "kl", text, *pair, "--out", tmp_path / "kl.json")
        agree = run(quality.app, "agree", text, *pair)
        perplexity = run(quality.app, "perplexity", text, *pair, "--window", 16, "--stride", 8)
    assert kl.exit_code == agree.exit_code == perplexity.exit_code == 0
    assert "0-1k" in kl.output
    assert "prompt_logprobs" in kl.output
    assert json.loads((tmp_path / "kl.json").read_text())["buckets"][0]["bucket"] == "all"
    assert "chance to part" in agree.output
    assert "ratio" in perplexity.output


def test_a_wrong_use_is_told(tmp_path, text):
    found = run(quality.app, "score", tmp_path / "none.jsonl", "--url", "http://127.0.0.1:9")
    assert found.exit_code == 2
    both = ("--judge-command", "x", "--judge-pattern", "y")
    with ToyServer(chat=right) as server:
        assert run(quality.app, "score", "refusals", "--url", server.url, *both).exit_code == 2
    assert (
        run(quality.app, "kl", text, "--url", "http://127.0.0.1:9", "--reference", "http://127.0.0.1:9").exit_code == 1
    )


def stored(path, ttft_s):
    slo = [SloClass(name="chat", ttft_s=1.0)]
    window = Window(start_ns=0, end_ns=100_000_000_000)
    info = RunInfo(name=path.name, slo=slo, window=window, span_s=100.0, target=TargetInfo(url="http://u", model="m"))
    write_run(path, info, [answered(i, ttft_s=ttft_s) for i in range(100)])
    return path


def test_gates_end_with_the_code_of_the_verdict(tmp_path):
    spec = tmp_path / "gates.toml"
    spec.write_text("[ttft]\n")
    fast, slow = stored(tmp_path / "fast", 0.2), stored(tmp_path / "slow", 3.0)
    passed = run(gate.app, "check", spec, "--run", fast, "--out", tmp_path / "verdict")
    assert (passed.exit_code, passed.output.splitlines()[-1]) == (0, "pass: 1 of 1 checks")
    assert json.loads((tmp_path / "verdict" / "verdict.json").read_text())["answer"] == "pass"
    assert run(gate.app, "check", spec, "--run", slow).exit_code == 1
    assert run(gate.app, "check", spec).exit_code == 2
    spec.write_text("[tttf]\n")
    assert run(gate.app, "check", spec).exit_code == 2


def test_gates_take_scores_at_the_margin_of_the_spec(tmp_path):
    spec = tmp_path / "gates.toml"
    spec.write_text("[quality]\nmargin_points = 20\n")
    _, good = scored(tmp_path, "good", right)
    found = run(gate.app, "check", spec, "--score", good, "--base-score", good)
    assert found.exit_code == 0, found.output
    assert "by more than 20 points" in found.output


def test_half_a_perplexity_is_refused_and_not_dropped(tmp_path):
    (tmp_path / "gates.toml").write_text("[quality]\nmax_perplexity_ratio = 1.02\n")
    found = run(gate.app, "check", tmp_path / "gates.toml", "--perplexity", tmp_path / "one.json")
    assert found.exit_code == 2
    assert "give both" in found.output
