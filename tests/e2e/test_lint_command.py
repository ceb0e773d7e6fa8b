"""`paceline lint` on what a real server and the lab leave: what `serve` says at its start, two runs of one seed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.served_toy import ADMIN_KEY, Served, serve_tiny
from tests.fakes.server_process import eventually
from typer.testing import CliRunner

from paceline.assemble.lint import lint_folder
from paceline.cli.main import app
from paceline.contracts.lint import LintResult
from paceline.lab.artefact import read_run
from paceline.lab.experiment.counts import Counts
from paceline.lab.experiment.measure import MeasureOptions, measure
from paceline.lab.load import LoadOptions, probe
from paceline.lab.workload import load_spec

QUICK = MeasureOptions(load=LoadOptions(num_processes=0), calibrate=False, energy=(), counts=Counts())
CLASSES = "[classes.hurry]\ntpot_ms = 0.000001\n"  # nobody meets a nanosecond
STREAM = {"arrival": {"kind": "closed", "slots": 2}, "input": 64, "output": 4, "endpoint": "completions"}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lint")
    (folder / "tenants.toml").write_text(CLASSES)
    with serve_tiny(folder, tenants=str(folder / "tenants.toml")) as server:
        yield server


def run_of(served: Served, out: Path, protocol: list[str]) -> Path:
    slo = {"default": {"ttft_s": 60.0}}
    spec = load_spec({"num_requests": 8, "slo": slo, "stream": [STREAM], "cache": {"protocol": protocol}})
    measure(asyncio.run(probe(served.url, api_key=ADMIN_KEY)), spec, seed=1, out=out, options=QUICK)
    return out


def codes(result: LintResult) -> set[str]:
    return {finding.code for finding in result.findings}


def test_serve_warns_of_a_class_that_its_batch_cannot_meet(served):
    eventually(lambda: "PL101 error (class hurry)" in served.log())
    (line,) = [line for line in served.log().splitlines() if "PL101" in line]
    assert "no batch meets the TPOT target" in line
    assert "fix: " in line


def test_the_same_questions_again_are_found_and_a_salt_clears_it(served, tmp_path):
    first = run_of(served, tmp_path / "first", ["verify"])
    again = run_of(served, tmp_path / "again", ["verify"])
    salted = run_of(served, tmp_path / "salted", ["salt"])
    done = CliRunner().invoke(app, ["lint", str(again), "--against", str(first)])
    assert done.exit_code == 1, done.output
    assert "PL201 error: the cache knew the questions" in done.stdout
    assert "8 prompts of this run were sent" in done.stdout
    done = CliRunner().invoke(app, ["lint", str(salted), "--against", str(first), "--fail-on", "never"])
    assert "PL201" not in done.stdout.split("rules judged")[0]
    known, fresh = (read_run(folder).metrics.whole.prefix_hit.value for folder in (again, salted))
    assert known is not None
    assert fresh is not None
    assert known > 0.5 > fresh  # of the prompt tokens, from the cache


def test_a_run_of_our_server_knows_its_options_and_its_weights(served, tmp_path):
    folder = run_of(served, tmp_path / "run", ["salt"])
    (result,) = lint_folder(folder)
    assert {"PL202", "PL203", "PL204"} <= codes(result)  # one length, closed, eight requests
    # its cache's size and its options are told; a run this short may end between two looks at its metrics
    assert result.skipped.get("PL102", "") in ("", "needs the server's metrics: running and waiting")
    assert "PL103" in result.skipped  # floats
