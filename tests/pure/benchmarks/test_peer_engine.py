"""An engine's process: orders and answers, standing still between turns, its memory, and how it ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.peers.engines import engine as engine_module
from benchmarks.peers.engines.columns import Column, Machine, columns
from benchmarks.peers.engines.engine import Engine, EngineFailedError
from benchmarks.peers.engines.memory import held, resident_bytes, tree
from benchmarks.peers.engines.workloads import FULL, Arrival, Call

WORKERS = Path(engine_module.__file__).with_name("workers")
WORKER = f"""
import sys
sys.path.insert(0, {str(WORKERS)!r})
import worker_loop
answers = worker_loop.take_stdout()
print("what a library prints is no answer")

def generate(prompts, num_out):
    if prompts == [[666]]:
        raise SystemExit("the engine broke")
    return [ids[:1] * (num_out - (ids[0] == 13)) for ids in prompts]

def online(schedule, limit_s, late_s, most_late):
    return [{{"first_s": r["at_s"], "last_s": limit_s, "num_tokens": r["num_out"]}} for r in schedule]

worker_loop.work(answers, generate, version=worker_loop.options()["version"], online=online)
"""


@pytest.fixture
def engine(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    column = Column(
        name="A test", ours=True, worker=str(worker), python=Path(sys.executable), model=worker,
        options={"version": "1.2"}, environment=dict(os.environ),
    )  # fmt: skip
    made = Engine(column, tmp_path)
    yield made
    made.close()


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_for(condition):
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never came")


def test_orders_are_answered_and_what_waits_stands_still(engine):
    with engine.turn():
        assert engine.version == "1.2"
        assert engine.generate(Call([[1, 2], [3]], 4)) >= 0
        assert engine.outputs(Call([[1, 2], [3]], 2)) == [[1, 1], [3, 3]]
        pid = engine._child.pid
    wait_for(lambda: state(pid) == "T")
    with engine.turn():
        assert engine._child.pid == pid
        found = engine.online([Arrival(0.5, [1], 3)], 9.0, late_s=1.0, most_late=3)
        assert found == [{"first_s": 0.5, "last_s": 9.0, "num_tokens": 3}]
        with engine.memory() as peak:
            pass
        assert peak.bytes > 1_000_000
    engine.close()
    assert not Path(f"/proc/{pid}").exists()


KILLED = """
import os, sys
from pathlib import Path
from benchmarks.peers.engines.columns import Column
from benchmarks.peers.engines.engine import Engine

path = Path(sys.argv[1])
column = Column("A test", True, str(path), Path(sys.executable), path, {"version": "1"}, dict(os.environ))
engine = Engine(column, path.parent)
with engine.turn():
    pass
print(engine._child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_nothing_stays_behind_when_the_run_is_killed(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    path = os.pathsep.join([str(WORKERS.parents[3] / "src"), str(WORKERS.parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(worker)],
        env=dict(os.environ) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or state(pid) == "Z")


def test_answers_of_another_length_are_a_failure(engine):
    with engine.turn(), pytest.raises(EngineFailedError, match=r"\[3, 4\] tokens, 4 were asked for"):
        engine.generate(Call([[1], [13]], 4))


def test_an_engine_that_ends_says_its_last_words_and_may_start_again(engine):
    with engine.turn(), pytest.raises(EngineFailedError, match="the engine broke"):
        engine.generate(Call([[666]], 4))
    with engine.turn():
        assert engine.generate(Call([[1]], 1)) >= 0


def test_memory_counts_what_is_private_and_the_most_that_is_shared():
    rollup = "1-2 ---p 0 0 0 [rollup]\nRss:  900 kB\nPss: 1 kB\nPrivate_Clean: 100 kB\nPrivate_Dirty: 300 kB\n"
    assert held(rollup) == (400 * 1024, 500 * 1024)
    assert os.getpid() in tree(os.getppid())
    assert resident_bytes(os.getpid()) > 10_000_000


def test_what_is_not_there_is_named_with_the_reason(tmp_path):
    found = {column.name: column for column in columns(Machine(tmp_path, 2, 256))}
    assert "setup.sh makes it" in found["vLLM bf16"].missing()
    (tmp_path / "vllm.why").write_text("ERROR: no matching distribution\n")
    assert found["vLLM bf16"].missing() == "ERROR: no matching distribution"
    assert "Q4_1" in found["paceline auto"].missing()
    (tmp_path / "models").mkdir()
    found["paceline auto"].model.write_text("")
    assert found["paceline auto"].missing() == ""


@pytest.mark.parametrize("name", ["paceline int8", "paceline auto", "llama.cpp Q4_0", "vLLM bf16"])
def test_every_server_gets_the_same_chunk(tmp_path, name):
    (column,) = [column for column in columns(Machine(tmp_path, 3, 128)) if column.name == name]
    assert "128" in column.server.argv


def test_every_engine_gets_the_same_threads(tmp_path):
    for column in columns(Machine(tmp_path, 3, 128)):
        told = {column.options.get("threads"), column.options.get("num_threads")}
        assert 3 in told or column.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-2", column.name


def test_memory_is_compared_with_as_many_requests_at_once(tmp_path):
    known = columns(Machine(tmp_path, 2, 256))
    ours, (peer,) = [column for column in known if column.ours], [column for column in known if column.loads]
    assert peer.loads == ("W3",)
    assert peer.options["slots"] == FULL["W3"].num_prompts
    assert {column.options["max_num_seqs"] for column in ours} == {peer.options["slots"]}
    assert len({column.slug for column in known}) == len(known)
    tokens = FULL["W3"].num_prompts * (FULL["W3"].num_in + FULL["W3"].num_out)
    per_token = 30 * 2 * 3 * 64 * 2  # SmolLM2-135M: layers, K and V, heads, numbers of bfloat16
    assert all(tokens * per_token < column.options["kv_cache_memory"] < 1.25 * tokens * per_token for column in ours)
