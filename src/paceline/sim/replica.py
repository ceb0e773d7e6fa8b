"""One engine in virtual time: the engine's own scheduler and KV manager over a simulated executor.

    begin(now)      a step, or a run of decode steps, begins at a step boundary; `next_time` says when it ends
    submit, abort   from outside, at any time in between
    advance(now)    it has ended: what became final; the caller then begins the next

It does what `engine.loop` does between two steps, in the same order: expire, plan, submit; apply, hand outputs out.
With `macro_steps` a run of identical decode steps is one event (`engine.horizon`). A request that comes meanwhile cuts
the run behind the step it falls into, which is the step that sees it. Times and plans are those of single steps.
"""

from __future__ import annotations

import msgspec

from paceline.contracts.ports import CostModel
from paceline.contracts.request import Request, RequestOutput
from paceline.engine.horizon import DecodeRun
from paceline.engine.kv_manager import KVManager
from paceline.engine.plan_columns import Flight
from paceline.engine.scheduler import Scheduler
from paceline.sim.clock import VirtualClock
from paceline.sim.executor import SimulatedExecutor
from paceline.sim.pace import Pace
from paceline.sim.prompts import Answers

NEVER = float("inf")


class News(msgspec.Struct):
    """What a step brought."""

    first_tokens: list[int] = []  # requests
    left: list[int] = []  # requests whose client has now seen as many tokens as it wanted
    ends: list[RequestOutput] = []  # terminal outputs, with timeline and usage


NO_NEWS = News()  # most steps bring none; never changed


class Replica:
    """`cost` are the prices of the executor. Only one step is in flight at a time. With `answers` outputs are known
    beforehand. Then steps may be jumped over (`macro_steps`), and plans need not be written down (`write_plans`): the
    scheduler decides as ever, and nothing goes through the executor."""

    __slots__ = (
        "_answers",
        "_began",
        "_clock",
        "_cost",
        "_executor",
        "_flight",
        "_handle",
        "_leaving",
        "_macro_steps",
        "_num_run",
        "_pace",
        "_run",
        "_settles",
        "_silent",
        "_wants",
        "_was_cut",
        "_write_plans",
        "busy_s",
        "index",
        "kv",
        "next_time",
        "num_events",
        "num_steps",
        "scheduled",
        "scheduler",
    )

    def __init__(
        self,
        index: int,
        scheduler: Scheduler,
        kv: KVManager,
        executor: SimulatedExecutor,
        clock: VirtualClock,
        cost: CostModel,
        *,
        answers: Answers | None = None,
        macro_steps: bool = True,
        write_plans: bool = False,
    ) -> None:
        assert executor.caps.max_in_flight == 1, "a simulated replica has one step in flight"
        assert answers is not None or (write_plans and not macro_steps), "tokens must come from somewhere"
        self.index = index
        self.scheduler = scheduler
        self.kv = kv
        self.next_time = NEVER  # when it has something to do by itself
        self.scheduled = NEVER  # time of the event that was put on the heap last: those of other times mean nothing
        self.num_events = 0
        self.num_steps = 0
        self.busy_s = 0.0
        self._executor = executor
        self._clock = clock
        self._cost = cost
        self._macro_steps = macro_steps
        self._write_plans = write_plans
        self._answers = answers
        # tenants are charged per step and new ones are ranked by it, so a run must be settled before somebody comes
        self._settles = scheduler.settings.policy == "fair"
        self._handle: int | None = None  # of the step in flight
        self._flight: Flight | None = None  # the same, of a plan that was not written
        self._run: DecodeRun | None = None
        self._pace: Pace | None = None
        self._num_run = 0  # steps of the run that will be done at next_time
        self._began = 0.0
        self._silent: set[int] = set()  # open requests without a token
        self._wants: dict[int, int] = {}  # requests whose client leaves after so many tokens more
        self._leaving: set[int] = set()  # open requests that may be aborted at any time
        self._was_cut = False  # somebody came during this run and was not settled

    @property
    def has_work(self) -> bool:
        """Not all it was given has ended, and was told of."""
        return self.scheduler.has_work or self.scheduler.has_outputs

    @property
    def is_idle(self) -> bool:
        """Nothing is being computed."""
        return self._handle is None and self._run is None and self._flight is None

    # from outside

    def submit(self, request: Request, now: float, leaves_after: int | None = None, may_leave: bool = False) -> None:
        """Take a request in; the next step may see it. Raises what the engine raises, and nothing changes then.

        `leaves_after`: the client goes when it has seen so many tokens; `News.left` tells. `may_leave`: it may be
        aborted at any time.
        """
        if self._run is not None and not self._was_cut:
            careful = may_leave or leaves_after is not None
            if careful or self._settles or self._wants or self._leaving:
                self._settle(now)
        request_id, answers = request.request_id, self._answers
        self.scheduler.add(request, now, None if answers is None else answers.of(request_id))
        self._silent.add(request_id)
        if leaves_after is not None:
            self._wants[request_id] = max(1, leaves_after)
        if may_leave:
            self._leaving.add(request_id)
        if self._run is not None:
            self._cut(now)

    def abort(self, request_id: int, now: float) -> News:
        """The client of a request that may leave is gone."""
        # a run that was cut runs nobody who may leave: this one is waiting
        if self._run is not None and not self._was_cut:
            self._settle(now)
        self.scheduler.abort(request_id, now)
        return self._news()

    def settle(self, now: float) -> None:
        """Be where single steps would be at `now`: of a run, apply what has ended, and plan the step that runs."""
        if self._run is not None and not self._was_cut:
            self._settle(now)

    # steps

    def wake(self, now: float) -> None:
        """Somebody came: unless something is under way, `advance` and `begin` at `now`, after all who come then."""
        if self._run is None and self.next_time > now and self.is_idle:
            self.next_time = now

    def begin(self, now: float) -> None:
        """Begin what comes next, if there is anything. Only while idle."""
        self._began = now
        if self._macro_steps and (run := self.scheduler.horizon()) is not None:
            pace = Pace(self._cost, run.shape, run.num_steps, now)
            if (num := self._most_steps(run, pace)) > 0:
                self._run, self._pace, self._num_run, self._was_cut = run, pace, num, False
                self.next_time = pace.end(num)
                return
        self._plan(now)

    def _most_steps(self, run: DecodeRun, pace: Pace) -> int:
        """So many that no plan of theirs is late for a deadline, and nobody's client leaves before the last ends."""
        num = run.num_steps
        wake = self.scheduler.wake_time()
        if wake is not None:
            num = min(num, pace.begun_before(wake))
        if self._wants:
            num = min(num, *self._wants.values())
        return num

    def _plan(self, now: float) -> None:
        """One step, planned at `now`."""
        self.scheduler.expire(now)
        if not self._write_plans:
            self._flight = self.scheduler.plan_unwritten(now)
            if self._flight is None:
                self._wait(now)
            else:
                self.next_time = now + self._flight.est_ms / 1000.0
            return
        self._clock.advance_to(now)
        plan = self.scheduler.plan(now)
        if plan.is_empty:
            self._wait(now)
            return
        self._handle = self._executor.submit(plan)
        self._executor.sample(self._handle, None)
        self.next_time = self._executor.done_at(self._handle)

    def _wait(self, now: float) -> None:
        """Nothing can be planned now."""
        wake = now if self.scheduler.has_outputs else self.scheduler.wake_time()
        self.next_time = NEVER if wake is None else max(now, wake)

    def advance(self, now: float) -> News:
        """What is under way has ended (or nothing was); its results are applied."""
        self.num_events += 1
        if self._run is not None:
            self._apply_run(self._num_run, now)
            self._run = self._pace = None
        elif self._flight is not None:
            self._flight = None
            self.num_steps += 1
            self.busy_s += now - self._began
            self.scheduler.apply_unwritten(now, bool(self._wants))
        elif self._handle is not None:
            self._clock.advance_to(now)
            result = self._executor.poll(self._handle)
            assert result is not None
            self._handle = None
            self.num_steps += 1
            self.busy_s += now - self._began
            self.scheduler.apply(result, now)
        self.next_time = NEVER
        return self._news()

    def fail(self, now: float) -> News:
        """It stops at once, and every open request ends with what was final before."""
        if self._run is not None:
            assert self._pace is not None
            done = min(self._num_run - 1, max(0, self._pace.begun_before(now) - 1))
            if done:
                self._apply_run(done, self._pace.end(done))
        self._run = self._pace = self._handle = self._flight = None
        self.next_time = self.scheduled = NEVER
        self.scheduler.abort_all(now)
        return self._news()

    # runs

    def _cut(self, now: float) -> None:
        """Somebody came: the step that runs is the last one of the run."""
        assert self._pace is not None
        begun = max(1, self._pace.begun_before(now))
        self._was_cut = True
        if begun < self._num_run:
            self._num_run = begun
            self.next_time = self._pace.end(begun)

    def _settle(self, now: float) -> None:
        """Apply the steps that have ended before `now`, and plan the one that runs as a step of its own."""
        assert self._run is not None
        assert self._pace is not None
        pace, num_run = self._pace, self._num_run
        done = min(num_run - 1, max(0, pace.begun_before(now) - 1))
        if done:
            self._apply_run(done, pace.end(done))
        begun_at = pace.end(done)
        self._run = self._pace = None
        self._began = begun_at
        self._plan(begun_at)
        assert self._handle is not None or self._flight is not None
        if self.next_time < now:  # by the last bit
            self.next_time = now

    def _apply_run(self, num: int, now: float) -> None:
        """Its first `num` steps have ended, the last of them `now`."""
        run, pace = self._run, self._pace
        assert run is not None
        assert pace is not None
        self.num_steps += num
        self.busy_s += now - pace.start
        if self._write_plans:
            self._executor.skip(run.rows, num)
        self.scheduler.apply_repeated(run, num, pace, bool(self._wants))

    def _news(self) -> News:
        outputs = self.scheduler.outputs()
        if not outputs:
            return NO_NEWS
        news = News()
        silent, wants, leaving = self._silent, self._wants, self._leaving
        for output in outputs:
            request_id = output.request_id
            if output.token_ids and request_id in silent:
                silent.discard(request_id)
                news.first_tokens.append(request_id)
            if output.finish is not None:
                silent.discard(request_id)
                wants.pop(request_id, None)
                leaving.discard(request_id)
                news.ends.append(output)
            elif request_id in wants:
                wants[request_id] -= len(output.token_ids)
                if wants[request_id] <= 0:
                    del wants[request_id]
                    news.left.append(request_id)
        return news
