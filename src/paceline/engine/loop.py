"""The engine's loop: take requests in, plan, submit, apply, hand outputs out.

One thread calls `step`. Others may submit, abort and look: they hold the lock only while the host part of a step does
not, so a request can enter while the device computes. They wait for it at most `lock_limit_s`: should planning itself
hang, a look returns what was seen last, and says so, and every other call raises EngineError. All that reaches the
scheduler goes through here and into the journal, in one order.

Results are applied in the order of submission, and how many a step applies depends on the depth alone, never on which
of them happens to be ready. At depth 1 a step returns the outputs of its own plan, so they leave before the next one
is submitted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

import msgspec

from paceline.contracts.decision import Decision
from paceline.contracts.kv import KVEvents
from paceline.contracts.ports import Clock, EngineStats, Executor, Handle
from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.contracts.step import StepPlan
from paceline.engine.grammars import Grammars
from paceline.engine.journal import Aborted, Applied, CacheReset, Planned, StepJournal, Submitted
from paceline.errors import EngineError, PacelineError, RequestError

if TYPE_CHECKING:
    from paceline.engine.scheduler import Scheduler


def _system_seed() -> int:
    return SystemRandom().getrandbits(63)


class EngineCore:
    """Scheduler and executor in step. After an executor or scheduler failure, and after `close`, every open request has
    ended with an error, `healthy` is false and nothing new is taken in.

    `grammars` works out masks while the forward pass runs; without it requests with a grammar are refused. `draw_seed`
    gives seeds to requests without one. `lock_limit_s`: how long other threads wait for the host part of a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        journal: StepJournal | None = None,
        *,
        grammars: Grammars | None = None,
        draw_seed: Callable[[], int] = _system_seed,
        lock_limit_s: float = 5.0,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.journal = journal
        self._grammars = grammars if grammars is not None else Grammars(None, vocab_size=0, eos_token_ids=())
        self._draw_seed = draw_seed
        self._depth = executor.caps.max_in_flight
        self._in_flight: deque[tuple[StepPlan, Handle]] = deque()
        self._open: dict[int, int] = {}  # request id -> seed
        self._lock = threading.RLock()
        self._lock_limit_s = lock_limit_s
        self._hung = False  # nobody got the lock in time, and nobody has got it since
        self._error: EngineError | None = None
        self._last_outputs: list[RequestOutput] = []  # those of the end; the next step hands them out
        self._slow: str | None = None
        self._draining = False
        self._idle = False  # the last plan was empty, nothing is in flight, and nothing has come since
        self._last_plan: tuple[StepPlan, float] | None = None  # applied last, and its device ms
        self._last_host_s = 0.0
        self._last_stats = scheduler.stats(clock.now())
        self.busy_since: float | None = None  # start of the step that runs now; the watchdog reads it

    # --- intake

    def submit(self, request: Request) -> None:
        """Take a request in, or raise RequestError, QueueFullError or EngineError; nothing else changes then."""
        self.submit_all((request,))

    def submit_all(self, requests: Sequence[Request]) -> None:
        """Take all of them in, in order, or raise what the first that is refused raises; nothing else changes then.
        Waits, without the lock, for grammars that are not compiled yet."""
        cache = self._grammars.cache
        grammars = {
            r.request_id: (cache.compiled(r.grammar), partial(cache.anew, r.grammar))
            for r in requests
            if r.grammar is not None
        }
        with self._outside():
            self._require_alive()
            if self._draining:
                raise EngineError("the engine is draining and takes nothing new", fix="send the request elsewhere")
            seeds: dict[int, int] = {}
            seeded = [self._with_seed(request, seeds) for request in requests]
            now = self.clock.now()
            self.scheduler.add_all(seeded, now)
            self._open.update(seeds)
            for request_id, (grammar, anew) in grammars.items():
                self._grammars.rows.open(request_id, grammar, anew)
            self._idle = False
            if self.journal is not None:
                for request in seeded:
                    self.journal.record(Submitted(now=now, request=request))

    def prepare_grammar(self, grammar: bytes) -> bool:
        """True when it is compiled, False as long as it is being compiled. Raises RequestError when it is wrong."""
        return self._grammars.cache.prepare(grammar)

    def _with_seed(self, request: Request, seeds: dict[int, int]) -> Request:
        """The request with its seed resolved, which is noted in `seeds`, those of the same call."""
        request_id = request.request_id
        if request_id in self._open or request_id in seeds:
            raise RequestError(
                "this request id is still in use",
                param="request_id",
                seen=request_id,
                expected="an id no open request has",
            )
        seed = request.sampling.seed
        if seed is None:
            # choices of one call share their seed
            seed = seeds.get(request.leader, self._open.get(request.leader)) if request.leader is not None else None
            seed = self._draw_seed() if seed is None else seed
            sampling = msgspec.structs.replace(request.sampling, seed=seed)
            request = msgspec.structs.replace(request, sampling=sampling)
        seeds[request_id] = seed
        return request

    def abort(self, request_id: int) -> None:
        """End a request in whatever phase it is; unknown and finished ids are ignored."""
        self.abort_all((request_id,))

    def abort_all(self, request_ids: Sequence[int]) -> None:
        """`abort` for each of them."""
        with self._outside():
            if self._error is not None:
                return
            now = self.clock.now()
            for request_id in request_ids:
                if request_id not in self._open:
                    continue
                self.scheduler.abort(request_id, now)
                self._idle = False
                if self.journal is not None:
                    self.journal.record(Aborted(now=now, request_id=request_id))

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """The lock, for a thread that does not step."""
        if not self._enter():
            raise EngineError("the engine hangs between two steps", seen=self._hang(), fix="restart the engine")
        try:
            yield
        finally:
            self._lock.release()

    def _enter(self) -> bool:
        """Take the lock within the limit. Once that has failed, callers behind wait but shortly: they may be many."""
        got = self._lock.acquire(timeout=min(0.05, self._lock_limit_s) if self._hung else self._lock_limit_s)
        self._hung = not got
        return got

    def _hang(self) -> str:
        return f"planning or applying a step has taken more than {self._lock_limit_s:g} s"

    # --- the step

    def step(self) -> list[RequestOutput]:
        """One step; what became final in it. Never raises for what goes wrong inside: see `error`.

        An interrupt (Ctrl-C) does go through. It may leave a step half submitted, so it ends the engine as a failure
        does, and the next call returns the outputs of that end.
        """
        if self._error is not None:
            return self._take_last()
        try:
            return self._step()
        except Exception as error:  # whatever it was, no request may be left waiting for ever
            self._fail(error)
            return self._take_last()
        except BaseException as interrupt:
            self._fail(interrupt)
            raise
        finally:
            self.busy_since = None
            self._slow = None

    def _step(self) -> list[RequestOutput]:
        with self._lock:
            now = self.busy_since = self.clock.now()
            self.scheduler.expire(now)
            plan = self.scheduler.plan(now)
            if self.journal is not None:
                digest = b"" if plan.is_empty else plan.digest()
                self.journal.record(Planned(now=now, step=plan.step, digest=digest))
            self._idle = plan.is_empty and not self._in_flight
            planned_at = self.clock.now()
        keep = self._depth - 1
        if not plan.is_empty:
            self._grammars.rows.begin(plan)  # masks are worked out while the forward pass runs
            handle = self.executor.submit(plan)
            self._in_flight.append((plan, handle))
            self.executor.sample(handle, self._grammars.rows.inputs(plan))
        elif self._in_flight:
            keep = len(self._in_flight) - 1  # nothing to add: move on by one
        host_s = planned_at - now
        while len(self._in_flight) > keep:
            host_s += self._apply_oldest()
        self._last_host_s = host_s
        return self._take_outputs()

    def _apply_oldest(self) -> float:
        """Wait for the oldest result and apply it. Returns seconds of host work."""
        plan, handle = self._in_flight[0]
        result = self.executor.poll(handle, block=True)
        assert result is not None, "a blocking poll returns a result"
        result = self._grammars.rows.advance(result)
        with self._lock:
            now = self.clock.now()
            self._in_flight.popleft()
            self.scheduler.apply(result, now)
            if self.journal is not None:
                self.journal.record(Applied(now=now, result=result))
            self._last_plan = plan, result.device_ms
            return self.clock.now() - now

    def _take_outputs(self) -> list[RequestOutput]:
        with self._lock:
            if self._error is not None:
                return []  # closed during this step: how its requests ended is told already
            outputs = self.scheduler.outputs()
            for output in outputs:
                if output.finish is not None:
                    self._open.pop(output.request_id, None)
                    self._grammars.rows.close_request(output.request_id)
            return outputs

    def _fail(self, cause: BaseException) -> None:
        if isinstance(cause, EngineError):
            return self._end(cause)
        if isinstance(cause, PacelineError):
            detail = str(cause)
        elif isinstance(cause, Exception):
            detail = f"{type(cause).__name__}: {cause}"
        else:
            detail = f"a step was interrupted ({type(cause).__name__})"
        error = EngineError(f"the engine stopped: {detail}", fix="see the log; restart the engine")
        error.__cause__ = cause
        return self._end(error)

    def _end(self, error: EngineError) -> None:
        """The end: every open request gets an error, once."""
        with self._lock:
            if self._error is not None:
                return
            self._last_outputs = self._take_outputs()  # what was final before it happened
            self._error = error
            for request_id in self._open:
                self._last_outputs.append(
                    RequestOutput(request_id=request_id, token_ids=[], finish=FinishReason.ERROR, error=str(error))
                )
            self._open.clear()

    def _take_last(self) -> list[RequestOutput]:
        with self._lock:
            outputs, self._last_outputs = self._last_outputs, []
            return outputs

    # --- looking

    @property
    def error(self) -> EngineError | None:
        """Why the engine stopped, or None."""
        return self._error

    @property
    def healthy(self) -> bool:
        """Ready to serve: not stopped, and the step that runs, if any, is not suspiciously long."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """What makes it unhealthy, with the last decisions."""
        return str(self._error) if self._error is not None else self._slow

    @property
    def has_work(self) -> bool:
        """A step would bring something, or something is on its way."""
        if self._error is not None:
            return bool(self._last_outputs)
        return bool(self._open) or bool(self._in_flight)

    def idle_s(self) -> float | None:
        """Seconds until a step could do something: 0 = now, None = not before something is submitted."""
        with self._lock:
            if self._error is not None:
                return 0.0 if self._last_outputs else None
            if self._in_flight or self.scheduler.has_outputs:  # an abort ends a request without a step
                return 0.0
            if not self.scheduler.has_work:
                return None
            if not self._idle:
                return 0.0
            wake = self.scheduler.wake_time()
            return 0.0 if wake is None else max(0.0, wake - self.clock.now())

    def stats(self) -> EngineStats:
        """A look between steps, or during a step's device part."""
        if not self._enter():
            return self._stats_of_a_hang()
        try:
            stats = self.scheduler.stats(self.clock.now())
            trouble = self.trouble
            self._last_stats = msgspec.structs.replace(
                stats, stalled=trouble is not None, trouble=trouble or "", last_step=self._last_step()
            )
            return self._last_stats
        finally:
            self._lock.release()

    def _last_step(self) -> dict[str, float]:
        """The step applied last, in numbers: worked out when asked, not at every step."""
        if self._last_plan is None:
            return {}
        plan, device_ms = self._last_plan
        return {
            "rows": float(plan.num_rows),
            "tokens": float(plan.num_tokens),
            "decode_rows": float(((plan.count - plan.num_draft) == 1).sum()),
            "device_ms": device_ms,
            "est_ms": plan.est_ms,
            "host_us": self._last_host_s * 1e6,
        }

    def _stats_of_a_hang(self) -> EngineStats:
        trouble = self.trouble or f"{self._hang()}\n{self.dump()}"
        return msgspec.structs.replace(self._last_stats, time=self.clock.now(), stalled=True, trouble=trouble)

    def decisions(self, request_id: int) -> Sequence[Decision]:
        with self._outside():
            return self.scheduler.explain(request_id)

    def kv_events(self) -> KVEvents:
        """Changes of the prefix cache since the last call."""
        with self._outside():
            return self.scheduler.kv_events()

    def dump(self) -> str:
        """The last decisions as text, for people. Takes no lock: it is asked for when a step hangs."""
        return self.scheduler.decisions.dump()

    # --- control

    def mark_slow(self, why: str) -> None:
        """Called by the watchdog while a step takes too long; the end of that step takes it back."""
        self._slow = why

    def stop_intake(self) -> None:
        self._draining = True

    def resume_intake(self) -> None:
        self._draining = False

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False if that could not be done now."""
        with self._outside():
            now = self.clock.now()
            done = self.scheduler.reset_prefix_cache(now)
            if self.journal is not None:
                self.journal.record(CacheReset(now=now))
            return done

    def close(self) -> None:
        """Stop for good. Open requests end with an error, which the next `step` hands out; the executor lets go of its
        memory."""
        with self._lock:
            self._end(EngineError("the engine is closed"))
            self._in_flight.clear()
            self.executor.close()
            self._grammars.close()
            if self.journal is not None:
                self.journal.close()

    def _require_alive(self) -> None:
        if self._error is not None:
            raise self._error
