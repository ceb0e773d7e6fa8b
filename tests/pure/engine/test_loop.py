from __future__ import annotations

import gc
import threading
import weakref

import pytest
from tests.fakes.builders import VOCAB, Built, collect, make_request, reference, scripted_engine
from tests.fakes.remote_executor import RemoteExecutor
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.toy_model import ToyModel

from paceline.contracts.request import FinishReason, RequestOutput
from paceline.contracts.step import SampleInputs, StepPlan, StepResult
from paceline.engine.loop import EngineCore
from paceline.engine.watchdog import Watchdog
from paceline.errors import EngineError, RequestError, StallError


def scripted(built: Built) -> ScriptedExecutor:
    assert isinstance(built.executor, ScriptedExecutor)
    return built.executor


def test_at_depth_1_a_step_returns_the_outputs_of_its_own_plan() -> None:
    built = scripted_engine()
    built.core.submit(make_request(0, [1, 2, 3]))
    outputs = built.step()
    assert [len(o.token_ids) for o in outputs] == [1]
    assert outputs[0].token_ids == reference(make_request(0, [1, 2, 3]), 1, ToyModel(VOCAB))


def test_at_depth_2_the_outputs_of_a_plan_come_with_the_next_step() -> None:
    built = scripted_engine(depth=2)
    built.core.submit(make_request(0, [1, 2, 3]))
    assert built.step() == []
    assert [len(o.token_ids) for o in built.step()] == [1]


class _Eager:
    """Says results are there whenever asked; what is applied must not depend on it."""

    def __init__(self, executor: ScriptedExecutor) -> None:
        self._executor = executor
        self.caps = executor.caps
        self.log: list[str] = []

    def submit(self, plan: StepPlan) -> int:
        self.log.append(f"submit {plan.step}")
        return self._executor.submit(plan)

    def sample(self, handle: int, inputs: SampleInputs | None) -> None:
        self._executor.sample(handle, inputs)

    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        assert block
        self.log.append(f"poll {handle}")
        return self._executor.poll(handle)

    def shape(self, plan: StepPlan) -> object:
        return self._executor.shape(plan)

    def close(self) -> None:
        self._executor.close()


@pytest.mark.parametrize(("depth", "begin"), [(1, ["submit 0", "poll 0"]), (2, ["submit 0", "submit 1", "poll 0"])])
def test_results_are_applied_in_order_of_depth(depth: int, begin: list[str]) -> None:
    built = scripted_engine(depth=depth)
    executor = _Eager(scripted(built))
    core = EngineCore(built.scheduler, executor, built.clock)  # type: ignore[arg-type]
    core.submit(make_request(0, [1, 2, 3], 4, sampling={"ignore_eos": True}))
    while core.has_work:
        core.step()
    submits = [line for line in executor.log if line.startswith("submit")]
    polls = [line for line in executor.log if line.startswith("poll")]
    assert executor.log[: len(begin)] == begin
    assert len(submits) == len(polls)
    for k, line in enumerate(polls):
        assert executor.log.index(line) > executor.log.index(submits[min(k + depth - 1, len(submits) - 1)])


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failing_executor_ends_every_request_once_and_takes_nothing_new(depth: int) -> None:
    built = scripted_engine(depth=depth, max_rows=2, executor={"crash_at": 3})
    for i in range(5):
        built.core.submit(make_request(i, [1, 2, i], 30, sampling={"ignore_eos": True}))
    outputs: list[RequestOutput] = []
    for _ in range(20):
        outputs.extend(built.core.step())
    ended = collect(outputs)
    assert sorted(ended) == [0, 1, 2, 3, 4]
    assert all(f.reason == FinishReason.ERROR for f in ended.values())
    assert "fell off the bus" in (ended[4].last.error or "")
    assert not built.core.healthy
    assert not built.core.has_work
    assert isinstance(built.core.error, EngineError)
    assert isinstance(built.core.error.__cause__, RuntimeError)
    with pytest.raises(EngineError, match="fell off the bus"):
        built.core.submit(make_request(9, [1]))
    assert built.core.step() == []


def test_a_stall_turns_readiness_red_with_the_last_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    built = scripted_engine()
    built.core.submit(make_request(0, [1, 2, 3]))
    built.step()

    def stalled(_now: float) -> StepPlan:
        raise StallError(f"no progress\n{built.core.dump()}")

    monkeypatch.setattr(built.scheduler, "plan", stalled)
    assert [o.finish for o in built.core.step()] == [FinishReason.ERROR]
    assert not built.core.healthy
    assert "request 0 admit" in (built.core.trouble or "")
    assert built.core.stats().stalled


def test_a_step_that_does_not_end_is_seen_from_outside() -> None:
    built = scripted_engine()
    gate, entered = threading.Event(), threading.Event()
    executor = scripted(built)
    submit = executor.submit

    def hanging(plan: StepPlan) -> int:
        entered.set()
        assert gate.wait(10)
        return submit(plan)

    executor.submit = hanging  # type: ignore[method-assign]
    built.core.submit(make_request(0, [1, 2, 3]))
    told: list[str] = []
    watchdog = Watchdog(built.core, built.clock, limit_s=5.0, report=told.append)
    stepping = threading.Thread(target=built.core.step)
    stepping.start()
    assert entered.wait(10)
    assert watchdog.check()
    assert built.core.healthy
    built.clock.sleep(6.0)
    assert not watchdog.check()
    assert not watchdog.check()
    assert len(told) == 1
    assert not built.core.healthy
    assert "running for 6.0 s" in (built.core.trouble or "")
    assert built.core.stats().stalled  # looking works while the step hangs
    gate.set()
    stepping.join()
    assert built.core.healthy
    assert watchdog.check()


def test_requests_enter_while_the_device_computes() -> None:
    built = scripted_engine()
    executor = scripted(built)
    poll = executor.poll
    late = iter([make_request(1, [4, 5])])

    def polling(handle: int, *, block: bool = True) -> StepResult | None:
        for request in late:
            thread = threading.Thread(target=built.core.submit, args=(request,))
            thread.start()
            thread.join(10)
            assert not thread.is_alive(), "submit waits for the device"
        return poll(handle, block=block)

    executor.poll = polling  # type: ignore[method-assign]
    found = built.run(make_request(0, [1, 2, 3]))
    assert sorted(found) == [0, 1]


def test_a_seed_is_drawn_once_per_call_and_choices_share_it() -> None:
    built = scripted_engine()
    seeds = iter([11, 22, 33])
    core = EngineCore(built.scheduler, built.executor, built.clock, draw_seed=lambda: next(seeds))
    core.submit(make_request(0, [1, 2, 3], seed=None, temperature=1.0))
    core.submit(make_request(1, [1, 2, 3], seed=None, temperature=1.0, choice=1, leader=0))
    core.submit(make_request(2, [1, 2, 3], seed=None, temperature=1.0))
    outputs: list[RequestOutput] = []
    while core.has_work:
        outputs.extend(core.step())
    found = collect(outputs)
    model = ToyModel(VOCAB)
    for i, (seed, choice) in enumerate([(11, 0), (11, 1), (22, 0)]):
        expected = reference(make_request(i, [1, 2, 3], seed=seed, temperature=1.0, choice=choice), 8, model)
        assert found[i].token_ids == expected[: len(found[i].token_ids)]


def test_a_refused_request_changes_nothing() -> None:
    built = scripted_engine()
    with pytest.raises(RequestError):
        built.core.submit(make_request(0, []))
    assert not built.core.has_work
    assert built.core.idle_s() is None
    assert built.run(make_request(0, [1, 2]))[0].reason is not None


def test_the_timeline_says_when_tokens_were_there_not_when_they_were_planned() -> None:
    built = scripted_engine(executor={"device_ms": 10.0})
    found = built.run(make_request(0, [1, 2, 3], 3, sampling={"ignore_eos": True}))
    timeline = found[0].last.timeline
    assert timeline is not None
    assert timeline.ttft_s == pytest.approx(0.010)
    assert timeline.tpot_s == pytest.approx(0.010)


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_a_transfer_reads_are_not_reused_before_it_is_done(depth: int) -> None:
    """No tier exists yet; what a transfer will rely on does: pins of the pool, completions in results."""
    built = scripted_engine(depth=depth, num_blocks=12, prefix_caching=False)
    executor, pool = scripted(built), built.kv._pool
    poll = executor.poll
    most_limbo, done = 0, []

    def polling(handle: int, *, block: bool = True) -> StepResult | None:
        result = poll(handle, block=block)
        assert result is not None
        for transfer in result.transfers_done:
            pool.unpin(f"transfer {transfer}")
            done.append(transfer)
        return result

    executor.poll = polling  # type: ignore[method-assign]
    built.core.submit(make_request(0, [1] * 16, 4, sampling={"ignore_eos": True}))
    while not pool.num_held:
        built.step()
    built.step()
    blocks = [block for block in range(1, pool.num_blocks + 1) if pool.refs(block)][:3]
    for block in blocks:
        pool.ref(block)
        pool.deref(block, pin="transfer 7")
    executor.start_transfer(7, blocks, 25)
    for i in range(1, 12):
        built.core.submit(make_request(i, [i] * 14, 6, sampling={"ignore_eos": True}))
    while built.core.has_work:
        built.step()
        assert built.core.error is None
        if 7 not in done:
            most_limbo = max(most_limbo, pool.num_limbo)
    assert done == [7]
    assert most_limbo >= 3
    assert built.kv.stats().limbo == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_an_executor_in_another_process_that_sees_only_encoded_plans_gives_the_same_tokens(depth: int) -> None:
    windows = (None, 6)
    requests = [make_request(i, [1, 2, 3, 4, 5, 6, i], 9, temperature=1.0, seed=i) for i in range(5)]
    here = scripted_engine(depth=depth, num_blocks=30, windows=windows, max_rows=3)
    there = scripted_engine(depth=depth, num_blocks=30, windows=windows, max_rows=3)
    executor = RemoteExecutor(scripted(there).model, there.executor.caps)
    there.core = EngineCore(there.scheduler, executor, there.clock)
    expected, found = here.run(*requests), there.run(*requests)
    there.core.close()
    assert {i: f.token_ids for i, f in found.items()} == {i: f.token_ids for i, f in expected.items()}
    assert any(f.last.usage is not None and f.last.usage.cached_tokens for f in found.values())


def test_stats_show_the_last_step() -> None:
    built = scripted_engine()
    built.core.submit(make_request(0, [1, 2, 3], 5))
    built.core.submit(make_request(1, [1, 2, 3, 4], 5))
    built.step()
    last = built.core.stats().last_step
    assert (last["rows"], last["device_ms"]) == (2.0, 1.0)
    assert last["tokens"] == 7.0


def test_a_closed_engine_takes_nothing() -> None:
    built = scripted_engine()
    built.core.close()
    with pytest.raises(EngineError, match="closed"):
        built.core.submit(make_request(0, [1]))


def test_a_closed_engine_tells_how_its_open_requests_ended_once() -> None:
    built = scripted_engine(max_rows=1)
    for i in range(2):
        built.core.submit(make_request(i, [1, 2], 30, sampling={"ignore_eos": True}))
    built.step()
    built.core.close()
    assert built.core.has_work
    assert built.core.idle_s() == 0.0
    ended = collect(built.core.step())
    assert [(i, f.reason) for i, f in ended.items()] == [(0, "error"), (1, "error")]
    assert "closed" in (ended[0].last.error or "")
    assert built.core.step() == []
    assert not built.core.has_work
    assert built.core.idle_s() is None


@pytest.mark.parametrize("method", ["submit", "sample", "poll"])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_interrupted_step_ends_the_engine_and_says_so(
    depth: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = scripted_engine(depth=depth)
    for i in range(2):
        built.core.submit(make_request(i, [1, 2, i], 30, sampling={"ignore_eos": True}))
    built.step()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(built.executor, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        built.core.step()
    monkeypatch.undo()
    assert built.core.has_work  # the ends are not pulled yet
    ended = collect(built.core.step())
    assert {i: f.reason for i, f in ended.items()} == {0: "error", 1: "error"}
    assert all("a step was interrupted (KeyboardInterrupt)" in (f.last.error or "") for f in ended.values())
    assert not built.core.healthy
    assert not built.core.has_work
    with pytest.raises(EngineError, match="interrupted"):
        built.core.submit(make_request(9, [1]))


def test_what_an_abort_ended_is_worth_a_step() -> None:
    built = scripted_engine(max_wait_ms=1000.0)
    built.core.submit(make_request(0, [1, 2]))
    assert built.step() == []
    built.core.abort(0)
    assert built.core.idle_s() == 0.0
    assert [o.finish for o in built.core.step()] == [FinishReason.ABORT]
    assert built.core.idle_s() is None


def test_a_watchdog_does_not_keep_its_engine() -> None:
    built = scripted_engine()
    watchdog = Watchdog(built.core, built.clock, limit_s=0.04)
    gone = weakref.ref(built.core)
    watchdog.start()
    del built
    gc.collect()
    assert gone() is None
    assert watchdog.check()
    watchdog._thread.join(10)
    assert not watchdog._thread.is_alive()
    watchdog.stop()
