"""The step journal as a file: begun by an engine that was told to (`--journal FILE`), read and replayed anywhere.

    python -c 'from paceline.engine import replay_file; from paceline.cost import restore
               print(replay_file("run.journal", restore))'

The file begins with what the scheduler was built from, so it needs no model, no device and no configuration. It holds
the token ids of prompts and outputs: it is made readable by its owner alone, and belongs where secrets may be.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from paceline.contracts.ports import CostModel, ExecutorCaps, Prices, StepShape, plan_shape
from paceline.contracts.step import StepPlan
from paceline.engine.journal import (
    Applied,
    Began,
    Event,
    Planned,
    Replay,
    StepJournal,
    read_stream,
    replay_events,
    replayed,
)
from paceline.engine.kv_manager import KVManager
from paceline.engine.scheduler import Scheduler
from paceline.errors import ConfigError, EngineError, PacelineError

MAX_FILE_BYTES = 1 << 30


def begin_journal(
    path: str | Path | None,
    scheduler: Scheduler,
    prices: Prices,
    *,
    max_bytes: int = MAX_FILE_BYTES,
    report: Callable[[str], None] | None = None,
) -> StepJournal | None:
    """A journal in a new file, for the engine around `scheduler`; None without a path. `prices`: what makes its cost
    model again, as it is now.

    A file that is there already becomes `path` + ".old": the run before a restart is often the one wanted. At
    `max_bytes`, or when the disk is full, recording stops and `report` is told (none: a Python warning); what is there
    can still be replayed. Raises ConfigError when the file cannot be made.
    """
    if path is None:
        return None
    target = Path(path)
    try:
        if target.is_file():
            target.replace(f"{target}.old")
        sink = os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise ConfigError(
            "the journal cannot be written",
            seen=f"{target}: {error.strerror or error}",
            expected="a path in a folder that exists and may be written to",
            fix="give another path to journal, or leave it out",
        ) from None
    journal = StepJournal(sink, max_bytes=max_bytes, close_sink=True, report=report or _warn)
    journal.record(scheduler.describe(prices))
    return journal


def _warn(text: str) -> None:
    with suppress(Warning):  # warnings may be errors here; recording must not end the engine
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def read_journal(path: str | Path) -> Iterator[Event]:
    """The events of a journal file, in order, read as they are asked for.

    Raises EngineError when it cannot be read, is no journal, or is damaged; a last event cut short ends it quietly.
    """
    try:
        with open(path, "rb") as stream:
            yield from read_stream(stream, whole=True)
    except OSError as error:
        raise EngineError("the journal cannot be read", seen=f"{path}: {error.strerror or error}") from None


def replay_file(path: str | Path, make_cost: Callable[..., CostModel]) -> Replay:
    """Build the recorded scheduler anew, feed it the file, and compare every plan.

    `make_cost` is called with the recorded prices by name, and makes the cost model that the recording began with. It
    then learns again what that one learnt. Raises EngineError at the first plan that differs, and for what
    `read_journal` raises.
    """
    events, scheduler, _ = _opened(path, make_cost)
    with _whole():
        result = replay_events(events, scheduler)
    return Replay(digests=result.digests, num_events=result.num_events + 1)


class ServedStep(NamedTuple):
    """One step of an engine that had more to do when it ended."""

    at_s: float  # when it was planned, on the engine's clock
    shape: StepShape
    ms: float  # from its plan to the next one: the device, the loop around it, and whoever shared the machine
    device_ms: float


def served_steps(path: str | Path, make_cost: Callable[..., CostModel]) -> Iterator[ServedStep]:
    """The steps of a journal that others followed at once, with the time each took of the engine.

    Steps after which the engine waited say nothing and are left out. Raises what `replay_file` raises, and EngineError
    for an engine whose steps overlapped.
    """
    events, scheduler, caps = _opened(path, make_cost)
    if caps.max_in_flight != 1:
        raise EngineError("steps that overlap have no times of their own", seen=f"{caps.max_in_flight} in flight")
    last: tuple[StepPlan, float] | None = None
    device_ms, goes_on = 0.0, False
    with _whole():
        for event, plan in replayed(events, scheduler):
            if isinstance(event, Applied):
                device_ms, goes_on = event.result.device_ms, scheduler.has_work
            elif isinstance(event, Planned) and plan is not None:
                if last is not None and goes_on and not plan.is_empty:
                    yield ServedStep(last[1], plan_shape(last[0]), 1e3 * (event.now - last[1]), device_ms)
                last = None if plan.is_empty else (plan, event.now)


def _opened(path: str | Path, make_cost: Callable[..., CostModel]) -> tuple[Iterator[Event], Scheduler, ExecutorCaps]:
    """The events of a whole journal, and what they were recorded from, made anew."""
    events = read_journal(path)
    first = next(events, None)
    if not isinstance(first, Began):
        raise EngineError(
            "the journal does not begin with what the scheduler was built from",
            seen="nothing" if first is None else type(first).__name__,
            fix="use engine.replay, with a scheduler of your own",
        )
    with _whole():
        return events, _scheduler(first, make_cost(**first.prices)), first.caps


@contextmanager
def _whole() -> Iterator[None]:
    """Whatever events that decode and make no sense raise, as one error: nothing here would have recorded them."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:
        raise EngineError(
            "the journal is damaged, or of another version",
            seen=f"{type(error).__name__}: {error}",
            expected="events in the order in which an engine recorded them",
        ) from error


def _scheduler(began: Began, cost: CostModel) -> Scheduler:
    kv = KVManager(
        began.caps.layout,
        prefix_caching=began.prefix_caching,
        max_chunk_tokens=began.max_chunk_tokens,
        model_revision=began.model_revision,
        share_tenants=began.share_tenants,
    )
    return Scheduler(
        began.settings, began.caps, kv, cost, token_bytes=began.token_bytes, eos_token_ids=began.eos_token_ids
    )
