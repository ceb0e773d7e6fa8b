"""`paceline bench` as a user types it, against the mock: artefact, report, exit codes, and no key on any page."""

from __future__ import annotations

import html
import json
import shlex
import tomllib
from pathlib import Path

import pytest
from tests.e2e.conftest import Run
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.lab.artefact import is_intact, read_plan, read_run
from paceline.lab.mock import Fault, MockProcess, Reply, Script, Service

SPEC = """
# a closed loop: on a busy machine an open one may be client bound
num_requests = 12
drain_s = 5
[slo.default]
ttft_s = 60.0
tpot_s = 60.0
share = 0.5
[[stream]]
arrival = { kind = "closed", slots = 4 }
input = 24
output = 3
"""
KEY = "sk-not-to-be-seen"


@pytest.fixture(scope="module")
def mock():
    with MockProcess(Script(service=Service(ttft_ms=2, tpot_ms=1))) as server:
        yield server


@pytest.fixture
def spec(tmp_path) -> Path:
    path = tmp_path / "load.toml"
    path.write_text(SPEC)
    return path


def here(*arguments: str):
    """In this process, which is quicker."""
    return CliRunner().invoke(app, list(arguments))


def test_a_run_is_kept_reported_and_measured_again_by_the_command_on_its_page(paceline: Run, mock, spec, tmp_path):
    out, again = tmp_path / "run", tmp_path / "again"
    load = ("--workload", str(spec), "--no-calibrate", "--seed", "3")
    keys = ("--api-key", KEY, "--tenant-key", f"gold={KEY}")
    done = paceline("bench", "--url", mock.url, *load, *keys, "--slo", "ttft=30s,share=0.5", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Goodput" in done.stdout
    run = read_run(out)
    assert is_intact(out)
    assert len(run.records) == 12
    assert (run.info.slo[0].ttft_s, run.info.slo[0].tpot_s) == (30.0, None)
    for path in out.iterdir():
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in done.stdout + done.stderr
    page = (out / "report.html").read_text("utf-8")
    assert "The command of this run" in page

    command = shlex.split(run.info.fingerprint["command"])
    assert command[:4] == ["paceline", "bench", "--url", mock.url]
    assert "$API_KEY" in command
    assert "--out" not in command
    assert here("bench", "recompute", str(out)).stdout.startswith("equal")
    # the page's own workload, as a reader saves it, asks for the same requests
    text = page.split("workload.toml: the workload, resolved")[1].split('<pre tabindex="0">')[1].split("</pre>")[0]
    (tmp_path / "workload.toml").write_text(html.unescape(text))
    assert tomllib.loads((tmp_path / "workload.toml").read_text())["stream"]
    same = ("--url", mock.url, "--model", "mock", "--workload", str(tmp_path / "workload.toml"), "--seed", "3")
    done = paceline("bench", *same, "--no-calibrate", "--no-report", "--out", str(again))
    assert done.returncode == 0, done.stderr
    assert read_plan(again) == read_plan(out)
    found = here("bench", "compare", str(out), str(again), "--out", str(tmp_path / "compare.html"))
    assert found.exit_code in (0, 1), found.stderr
    assert (tmp_path / "compare.html").is_file()
    assert "requests paired" in (tmp_path / "compare.html").read_text("utf-8")


def test_a_gate_decides_the_exit_code_and_failures_are_not_hidden(paceline: Run, mock, spec, tmp_path):
    gates = tmp_path / "gates.toml"
    load = ("bench", "--url", mock.url, "--workload", str(spec), "--no-calibrate", "--no-report", "--out")
    for table, code in (
        ("[goodput]\n", 0),  # without a base no ratio is asked
        ("[goodput]\nmin_rps = 1e6\n", 1),
        ("[goodput]\nmin_ratio = 0.97\n", 2),
    ):
        gates.write_text(table)
        found = here(*load, str(tmp_path / f"gate-{code}"), "--gates", str(gates))
        assert found.exit_code == code, found.output
    with MockProcess(Script(reply=Reply(fault=Fault(error_after_chunks=1)))) as broken:
        done = paceline("bench", "--url", broken.url, *load[3:], str(tmp_path / "broken"))
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = json.loads((tmp_path / "broken" / "metrics.json").read_text())["groups"][0]["outcomes"]
    assert "ok" not in outcomes
    assert sum(outcomes.values()) == 12


def test_what_would_do_nothing_or_cannot_be_is_refused(mock, spec, tmp_path):
    url = ("bench", "--url", mock.url)
    for arguments, words in (
        ((*url, "--serve", "--max-num-seqs 4"), "--serve is for a server that is started here"),
        ((*url, "--workload", str(spec), "--num-requests", "9"), "--num-requests is for named workloads"),
        ((*url, "--workload", "stedy"), "steady"),
        ((*url, "--slo", "ttft=1"), "a target was not understood"),
    ):
        done = here(*arguments, "--out", str(tmp_path / "none"))
        assert done.exit_code == 2, done.stderr
        assert words in done.stderr
    assert not (tmp_path / "none").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "run.json").write_text("{}")
    done = here(*url, "--workload", str(spec), "--out", str(tmp_path / "used"))
    assert done.exit_code == 1
    assert "holds results already" in done.stderr


def test_the_list_and_the_check_send_no_load(mock, spec, tmp_path):
    assert "multi-turn" in here("bench", "--list").stdout
    done = here("bench", "--url", mock.url, "--workload", str(spec), "--check", "--out", str(tmp_path / "none"))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("load: 12 requests in a closed loop, 24 tokens in and 3 out")
    assert not (tmp_path / "none").exists()


def test_a_typo_starts_no_server(tmp_path):
    for arguments in (("--workload", "stedy"), ("--workload", "not/there.toml"), ("--slo", "ttft=fast")):
        done = here("bench", *arguments, "--out", str(tmp_path / "none"))
        assert done.exit_code == 2
        assert "starting a server" not in done.stderr
        assert not (tmp_path / "none").exists()


def test_without_a_url_a_server_is_started_and_why_it_cannot_is_in_its_log(paceline: Run, spec, tmp_path):
    out = tmp_path / "run"
    done = paceline("bench", "--workload", str(spec), "--serve", "--no-such-option", "--out", str(out))
    assert done.returncode == 1
    assert "ended while it started" in done.stderr
    assert "no-such-option" in (out / "server.log").read_text()
