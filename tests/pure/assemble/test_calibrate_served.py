"""Prices learnt from a server that served: its steps are met, in each and in their sum, and what was not served keeps
its price relative to the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from tests.fakes.builders import make_request, scripted_engine
from tests.fakes.scripts import DEAR_TOKENS
from tests.pure.cost.test_calibration import KEY
from tests.pure.sim.test_truths import simulated
from typer.testing import CliRunner

from paceline.assemble.calibrate_served import LEAST_STEPS, outside_ms, refitted
from paceline.assemble.step_cost import load_calibration, save_calibration
from paceline.cli.calibrate import calibrate
from paceline.cli.demo_predict import as_served
from paceline.contracts.artefact import Chunk, ChunkKind, RequestRecord
from paceline.cost import Calibration, StepCost, decode_shape, prefill_shape, restore
from paceline.engine import ServedStep, begin_journal, served_steps
from paceline.engine.loop import EngineCore
from paceline.errors import ConfigError
from paceline.lab.artefact import write_run


class Machine:
    """A step has a fixed part, and a price for each position and each token of context."""

    def step_ms(self, shape):
        return 4.0 + 0.2 * shape.num_tokens + 0.001 * shape.context_tokens


IDLE = Calibration(
    key=KEY,
    prices=StepCost.from_prior(Machine()).prices,
    cells=(),
    probe_ms=(1.0, 1.0),
    load_gbps=1.0,
    gflops=1.0,
    memory_gbps=1.0,
)
SHAPES = [decode_shape(rows, context) for rows in (1, 2, 4) for context in (64, 256, 512)] + [prefill_shape(96)]


def served(ms_of, times: int = 12) -> list[ServedStep]:
    return [ServedStep(0.0, shape, ms_of(shape), 1.0) for _ in range(times) for shape in SHAPES]


def test_a_machine_that_serves_half_as_fast_costs_twice_as_much_everywhere():
    found = refitted(IDLE, served(lambda shape: 2 * Machine().step_ms(shape)), [3.0, 5.0, 9.0])
    for shape in [*SHAPES, prefill_shape(400)]:  # the last was not served
        assert found.cost().step_ms(shape) == pytest.approx(2 * Machine().step_ms(shape), rel=0.02)
    assert (found.served, found.request_ms) == (12 * len(SHAPES), 5.0)
    assert sum(cell.tries for cell in found.cells) == found.served
    assert max(cell.error for cell in found.cells) < 0.02


def test_the_loop_around_a_step_goes_into_its_fixed_part():
    found = refitted(IDLE, served(lambda shape: 3.0 + Machine().step_ms(shape)))
    assert found.cost().unit_prices[0] == pytest.approx(3.0 + IDLE.cost().unit_prices[0], rel=0.1)
    assert found.request_ms == 0.0


def test_the_sum_is_what_was_served_though_a_few_steps_took_ten_times_as_long():
    steps = served(lambda shape: Machine().step_ms(shape))
    steps = [step._replace(ms=10 * step.ms) if i % 20 == 0 else step for i, step in enumerate(steps)]
    cost = refitted(IDLE, steps).cost()
    assert sum(cost.step_ms(step.shape) for step in steps) == pytest.approx(sum(step.ms for step in steps), rel=1e-9)


def test_too_few_steps_are_refused():
    with pytest.raises(ConfigError, match="too few steps") as caught:
        refitted(IDLE, served(lambda shape: Machine().step_ms(shape))[: LEAST_STEPS - 1])
    assert str(LEAST_STEPS - 1) in str(caught.value)


def test_what_is_not_queue_or_prefill_is_outside_the_engine():
    chunks = [Chunk(1_000_000, ChunkKind.ROLE), Chunk(40_000_000, ChunkKind.CONTENT, 1)]
    record = RequestRecord(id=0, stream="s", t_send_ns=10_000_000, chunks=chunks)
    assert outside_ms(record) is None  # the server does not say
    record.server = {"queue_ms": 5.0, "prefill_ms": 18.0}
    assert outside_ms(record) == pytest.approx(7.0)
    record.streamed = False  # all of it comes at the end
    assert outside_ms(record) is None


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_calibration(tmp_path / "base.json", IDLE)
    return tmp_path / "base.json"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of an engine that served 12 requests."""
    path = tmp_path / "serve.journal"
    built = scripted_engine(num_blocks=64, max_rows=3, cost=DEAR_TOKENS)
    recorded = begin_journal(path, built.scheduler, DEAR_TOKENS.prices)
    built.core = EngineCore(built.scheduler, built.executor, built.clock, recorded)
    for request_id in range(12):
        built.core.submit(make_request(request_id, [1, 2, 3, request_id], 20, sampling={"ignore_eos": True}))
    built.finish()
    built.core.close()
    return path


def command(*flags: str) -> str:
    app = typer.Typer()
    app.command()(calibrate)
    return CliRunner().invoke(app, list(flags)).output


def test_a_journal_and_a_run_beside_it_make_a_calibration(tmp_path: Path, base: Path, journal: Path):
    records, info = simulated(1, 8.0, lag_s=0.03)
    write_run(tmp_path / "run", info, records)
    out = tmp_path / "served.json"
    flags = ("--served", str(journal), "--run", str(tmp_path / "run"), "--base", str(base), "--out", str(out))
    told = command(*flags)
    found = load_calibration(out)
    assert found.served > LEAST_STEPS
    assert found.request_ms == pytest.approx(30.0, abs=1e-3)
    steps = list(served_steps(journal, restore))
    assert sum(found.cost().step_ms(step.shape) for step in steps) == pytest.approx(sum(step.ms for step in steps))
    assert f"{found.served} steps; off by" in told
    assert "outside the engine: 30.0 ms a request" in told
    assert load_calibration(base) == IDLE


def test_the_demo_falls_back_on_idle_times_and_says_so(
    tmp_path: Path, base: Path, journal: Path, capsys: pytest.CaptureFixture[str]
):
    records, info = simulated(1, 8.0)
    write_run(tmp_path / "run", info, records)
    assert as_served(base, journal, tmp_path / "run", tmp_path) == tmp_path / "served.json"
    assert capsys.readouterr().err == ""
    assert as_served(base, tmp_path / "gone", tmp_path / "run", tmp_path) == base
    assert "the forecast is of an idle machine: the journal cannot be read" in capsys.readouterr().err


def test_the_command_wants_a_base_and_a_file_of_its_own(tmp_path: Path, base: Path):
    assert "--base and --out left out" in command("--served", "x.journal")
    assert "go with --served" in command("--base", str(base))
    missing = command("--served", str(tmp_path / "x"), "--base", str(base), "--out", str(tmp_path / "o.json"))
    assert "journal cannot be read" in missing
    assert not (tmp_path / "o.json").exists()
