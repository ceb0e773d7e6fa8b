"""`paceline tune` with scripted servers as arms: found as they are, refused with two groups, resumed after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.fakes.server_process import ROOT, eventually

from paceline.errors import ConfigError, LabError
from paceline.lab.artefact import is_intact
from paceline.lab.experiment.process import Launch, OwnedServer
from paceline.lab.experiment.results import ExperimentResult, PointResult, read_experiment
from paceline.lab.experiment.runner import run_experiment
from paceline.lab.experiment.spec import load_experiment

TUNE = [sys.executable, "-c", "import typer; from paceline.cli.tune import tune; typer.run(tune)"]
MOCK = [sys.executable, "-m", "paceline.lab.mock", "--port", "{port}"]
FAST_MS, SLOW_MS, LIMIT_MS = 20, 200, 100  # time per token; far apart, so that a busy machine changes nothing

SPEC = """
num_requests = {num_requests}
[experiment]
name = "mocks"
repeats = 2
[server]
kind = "command"
argv = {argv}
base = {{ script = "{folder}/base.json" }}
groups = {{ script = "batch" }}
[start]
cold = 0
[energy]
off = true
[slo]
chat = {{ ttft_ms = 60000, tpot_ms = {limit}, share = 0.9 }}
[[stream]]
class = "chat"
arrival = {{ kind = "closed", slots = 4 }}
input = 16
output = 3
[graph]
"""


def script(folder: Path, name: str, tpot_ms: float, **more) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"service": {"tpot_ms": tpot_ms}, **more}))


def spec(folder: Path, *nodes: str, num_requests: int = 12, argv: list[str] = MOCK, tail: str = "") -> Path:
    edges = [f'{name} = {{ group = "batch", change = {{ script = "{folder}/{name}.json" }} }}' for name in nodes]
    text = SPEC.format(num_requests=num_requests, argv=json.dumps(argv), folder=folder, limit=LIMIT_MS)
    path = folder / "spec.toml"
    path.write_text(text + "\n".join(edges) + tail)
    return path


def start(path: Path, out: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*TUNE, str(path), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=env,
    )


def run(path: Path, out: Path) -> ExperimentResult:
    """As the command does, in this process."""
    return run_experiment(load_experiment(path), out)


def servers(folder: Path) -> list[psutil.Process]:
    """Processes that have this test's folder in their command line: arms, and who keeps them."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if f"{folder}/" in words and "paceline.cli" not in words and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_a_slower_arm_is_found_slower_and_an_equal_one_near_its_parent(tmp_path):
    for name, tpot_ms in (("base", FAST_MS), ("slow", SLOW_MS), ("same", FAST_MS)):
        script(tmp_path, name, tpot_ms)
    result = run(spec(tmp_path, "slow", "same"), tmp_path / "out")
    assert result == read_experiment(tmp_path / "out")
    assert result.status == "complete"
    assert [p.node for p in result.points] == ["base", "slow", "same", "same", "slow", "base"]  # ABBA
    assert {p.status for p in result.points} == {"ok"}
    by_child = {edge.child: edge for edge in result.edges}
    assert by_child["slow"].answer == "worse"
    # one interval in twenty misses the truth (tests/pure/lab counts them): here only its place can be asked
    equal = next(r for r in by_child["same"].ratios if r.figure == "goodput_rps")
    assert 0.5 < equal.ratio.value < 2
    slower = next(r for r in by_child["slow"].ratios if r.figure == "e2e_p50_s")
    assert slower.answer == "worse"
    assert slower.ratio.value > SLOW_MS / LIMIT_MS
    # tokens of one read have no time between them, so the base's figure may be 0; its child is slower all the same
    assert next(r.answer for r in by_child["slow"].ratios if r.figure == "tpot_p50_s") == "worse"
    assert [c.name for c in by_child["slow"].changes] == ["script"]
    assert result.best == "base"
    assert "base.json" in result.serve_command
    seeds = {(p.node, p.repeat): p.seed for p in result.points}
    assert seeds["base", 0] == seeds["slow", 0] != seeds["base", 1]
    starts = result.node("base").starts
    assert len(starts) == 3
    assert starts[1].kind == "warm"
    assert starts[0].first_token_s > 0
    assert all(is_intact(tmp_path / "out" / p.path) for p in result.points)
    assert servers(tmp_path) == []


CONFIG = {"options": [{"name": "x.a", "value": 1, "group": "batch"}, {"name": "x.b", "value": 1, "group": "kv"}]}


def test_a_resolved_difference_in_two_groups_is_refused_before_any_load(tmp_path):
    script(tmp_path, "base", FAST_MS, config=CONFIG)
    both = {"options": [{**row, "value": 2} for row in CONFIG["options"]]}
    script(tmp_path, "both", FAST_MS, config=both)
    with pytest.raises(ConfigError, match=r"differ in more.*x.b \(kv\): 1 -> 2"):
        run(spec(tmp_path, "both"), tmp_path / "out")
    assert read_experiment(tmp_path / "out").points == ()
    assert servers(tmp_path) == []


def test_names_of_two_groups_are_refused_before_anything_starts(tmp_path):
    path = spec(tmp_path, tail='two = { group = "batch", change = { max_num_seqs = 4, kv_cache_dtype = "fp8" } }')
    with pytest.raises(ConfigError, match=r"kv_cache_dtype \(quantisation\)"):
        run(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def points(out: Path) -> tuple[PointResult, ...]:
    try:
        return read_experiment(out).points
    except LabError:  # not there yet
        return ()


def test_a_killed_experiment_goes_on_where_it_was_and_leaves_no_server(tmp_path):
    out = tmp_path / "out"
    script(tmp_path, "base", FAST_MS)
    script(tmp_path, "slow", SLOW_MS)
    path = spec(tmp_path, "slow", num_requests=24)
    first = start(path, out)
    eventually(lambda: (len(points(out)) == 1 and len(servers(tmp_path)) >= 2) or first.poll(), 200)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    eventually(lambda: not servers(tmp_path))  # the arm ends with the lab, however that ends
    (kept,) = points(out)
    assert kept.node == "base"
    assert read_experiment(out).status == "running"

    second = start(path, out)
    eventually(lambda: "[slow] starting" in second.stderr.readline() or second.poll(), 200)
    eventually(lambda: "point " in second.stderr.readline() or second.poll(), 200)
    time.sleep(0.5)
    second.send_signal(signal.SIGINT)
    printed, _ = second.communicate(timeout=200)
    assert second.returncode == 130
    assert "Not finished" in printed
    partial = read_experiment(out)
    assert partial.status == "partial"
    assert partial.points[0] == kept
    assert servers(tmp_path) == []
    assert all(is_intact(out / p.path) for p in partial.points if p.path)

    result = run(path, out)
    assert result.status == "complete"
    assert len(result.points) == 4
    assert result.points[0] == kept
    assert result.edges[0].answer == "worse"

    path.write_text(path.read_text().replace("output = 3", "output = 4"))
    with pytest.raises(ConfigError, match="the spec has changed"):
        run(path, out)
    assert read_experiment(out) == result


DYING = """
import os, sys, time, threading
from pathlib import Path
from paceline.lab.mock import MockServer, load_script
script, port = Path(sys.argv[4]), int(sys.argv[2])
mock = MockServer(load_script(script), port=port)
mock.start()
while sum(entry.path.startswith("/v1/c") for entry in mock.log()) < 40 or "dies" not in script.name:
    time.sleep(0.01)
print("device error: the memory is gone", file=sys.stderr, flush=True)
os._exit(7)
"""


def test_a_server_that_dies_makes_its_points_invalid_with_the_logs_tail(tmp_path):
    program = tmp_path / "server.py"
    program.write_text(DYING)
    for name in ("base", "dies"):
        script(tmp_path, name, 20)
    path = spec(tmp_path, "dies", num_requests=200, argv=[sys.executable, str(program), "--port", "{port}"])
    path.write_text(path.read_text().replace("repeats = 2", "repeats = 1"))
    result = run(path, tmp_path / "out")
    assert result.status == "complete"
    (dead,) = result.points_of("dies")
    assert dead.status == "invalid"
    assert "with status 7" in dead.reason
    assert dead.log_tail[-1] == "device error: the memory is gone"
    assert result.edges[0].answer == "invalid"
    assert result.best == "base"
    assert is_intact(tmp_path / "out" / dead.path)


def test_a_node_that_does_not_start_is_an_answer(tmp_path):
    script(tmp_path, "base", FAST_MS)
    (tmp_path / "wrong.json").write_text('{"no_such_key": 1}')
    path = spec(tmp_path, "wrong")
    path.write_text(path.read_text().replace("repeats = 2", "repeats = 1"))
    result = run(path, tmp_path / "out")
    assert result.best == "base"
    assert "ended while it started" in result.node("wrong").failed
    assert "no_such_key" in result.node("wrong").failed
    assert result.edges[0].answer == "invalid"


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(1000)
"""


def test_a_server_that_will_not_end_is_ended_with_all_it_started(tmp_path):
    server = OwnedServer(Launch(argv=(sys.executable, "-c", STUBBORN), stop_s=0.3), tmp_path / "log")
    with server:
        line = eventually(lambda: [w for w in server.log_tail() if w.startswith("child")])
        assert server.alive
        assert server.pid is not None
    assert not psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(int(line[0].split()[1]))
    assert server.stop() == 128 + signal.SIGKILL


def test_a_program_that_is_not_there_is_said(tmp_path):
    with pytest.raises(LabError, match="cannot be started"):
        OwnedServer(Launch(argv=("/no/such/program",)), tmp_path / "log").start()


def test_a_server_gets_its_environment_on_top_of_ours(tmp_path):
    script = "import os; print('A is', os.environ['A'], len(os.environ['PATH']) > 0, flush=True)"
    server = OwnedServer(Launch(argv=(sys.executable, "-c", script), env={"A": "b c"}), tmp_path / "log")
    with server:
        assert eventually(server.log_tail) == ["A is b c True"]
