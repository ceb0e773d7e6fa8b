"""A recorded run in simulation: the engine's loop again, in virtual time, with the durations and tokens it had.

The journal says what came in and when, when each plan was made, and what each step brought and took. Here the loop runs
again over an executor that answers from it. Plans are equal, byte for byte, when nothing that decides depends on
anything but these; a difference is found at the first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.contracts.ports import ExecutorCaps, StepShape, plan_shape
from paceline.contracts.step import SampleInputs, StepPlan, StepResult
from paceline.engine.journal import Aborted, Applied, CacheReset, Event, Planned, Submitted
from paceline.engine.loop import EngineCore
from paceline.engine.scheduler import Scheduler
from paceline.errors import EngineError
from paceline.sim.clock import VirtualClock


class RecordedExecutor:
    """`contracts.ports.Executor` that knows the result of each step; waiting for it takes what the device took."""

    def __init__(self, caps: ExecutorCaps, results: Mapping[int, StepResult], clock: VirtualClock) -> None:
        self.caps = caps
        self._results = results
        self._clock = clock
        self._busy_until = clock.now()
        self._done_at: dict[int, float] = {}
        self.digests: list[bytes] = []  # of the plans it was given

    def submit(self, plan: StepPlan) -> int:
        if plan.step not in self._results:
            raise EngineError("the recording ends before this step", seen=plan.step, fix="replay it up to here")
        self.digests.append(plan.digest())
        ms = self._results[plan.step].device_ms
        self._busy_until = max(self._busy_until, self._clock.now()) + ms / 1e3
        self._done_at[plan.step] = self._busy_until
        return plan.step

    def sample(self, handle: int, inputs: SampleInputs | None) -> None:
        """Masks were applied when it was recorded."""

    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        done_at = self._done_at[handle]
        if done_at > self._clock.now():
            if not block:
                return None
            self._clock.advance_to(done_at)
        del self._done_at[handle]
        return self._results[handle]

    def shape(self, plan: StepPlan) -> StepShape:
        return plan_shape(plan)

    def close(self) -> None:
        self._done_at.clear()


def simulate_recording(events: Iterable[Event], scheduler: Scheduler, caps: ExecutorCaps) -> list[bytes]:
    """Digests of the plans that a fresh `scheduler` makes when the recorded requests come as they came.

    Time stands at the recorded moments when requests come and plans are made; between them it is the device's alone.
    The events must end between two steps. Grammars are not replayed. Raises EngineError where the recording has no
    result for a step.
    """
    events = list(events)
    results = {event.result.step: event.result for event in events if isinstance(event, Applied)}
    clock = VirtualClock()
    executor = RecordedExecutor(caps, results, clock)
    core = EngineCore(scheduler, executor, clock)
    for event in events:
        if isinstance(event, Submitted | Aborted | CacheReset | Planned):
            clock.advance_to(event.now)
        if isinstance(event, Submitted):
            core.submit(event.request)
        elif isinstance(event, Aborted):
            core.abort(event.request_id)
        elif isinstance(event, CacheReset):
            core.reset_prefix_cache()
        elif isinstance(event, Planned):
            core.step()
            if core.error is not None:
                raise core.error
    return executor.digests
