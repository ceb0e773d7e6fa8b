"""`run_load`: a plan carried out against a target, from jobs to records in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from paceline.contracts.slo import Outcome
from paceline.errors import ConfigError
from paceline.lab.load.gathered import Gathered
from paceline.lab.load.generator import WorkerProgress
from paceline.lab.load.health import client_health
from paceline.lab.load.options import LoadOptions
from paceline.lab.load.prepare import Preparation
from paceline.lab.load.processes import ProcessLoad
from paceline.lab.load.progress import Progress, ProgressBoard
from paceline.lab.load.result import Finished, LoadResult
from paceline.lab.load.seams import Content, Plan, Validate
from paceline.lab.load.target import Target
from paceline.lab.load.within import run_within

SHOW_S = 0.5
REQUEST_COST_S, TOKEN_COST_S = 200e-6, 20e-6  # of one core, for choosing the number of processes
FULL_SHARE = 0.4  # of a core that one process may be planned to use


def run_load(
    target: Target,
    plan: Plan,
    content: Content,
    options: LoadOptions | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
    validate: Validate | None = None,
) -> LoadResult:
    """Carry out `plan` and give back a record of each attempt, in the order of ids.

    Blocks until the load is over: its span and then at most the drain limit, or `stop`, or Ctrl-C, after which the
    result is partial and valid. `on_start` is told the start (monotonic ns) just before it; `on_progress` is called
    about twice a second in this thread, or within the loop with `num_processes=0`. `validate` is called after the load,
    for answers that ended well. Raises ConfigError for a plan that needs one process and was given several, LabError
    where load processes cannot be had.
    """
    options = with_drain(options or LoadOptions(), plan)
    if validate is not None:
        options = msgspec.structs.replace(options, keep_for_validation=True)
    preparation = Preparation(target, plan, content)
    board = ProgressBoard(num_planned=len(plan.requests), span_s=plan.span_s)
    shown_at = time.monotonic()

    def show() -> None:
        nonlocal shown_at
        if on_progress is not None and time.monotonic() - shown_at >= SHOW_S:
            shown_at = time.monotonic()
            on_progress(board.now())

    def started(t0_ns: int) -> None:
        board.begin()
        if on_start is not None:
            on_start(t0_ns)

    count = num_processes(plan, options)
    if count == 0:

        def report_and_show(worker: int, progress: WorkerProgress) -> None:
            board.take(worker, progress)
            show()

        gathered = run_within(preparation, options, report=report_and_show, started=started, stop=stop)
    else:
        load = ProcessLoad(preparation, options, count, report=board.take, started=started, tick=show, stop=stop)
        gathered = load.run()
    if on_progress is not None:
        on_progress(board.now())
    return _result(preparation, gathered, options, validate)


def with_drain(options: LoadOptions, plan: Plan) -> LoadOptions:
    """With the plan's drain limit where the options have none."""
    return options if options.drain_s is not None else msgspec.structs.replace(options, drain_s=plan.drain_s)


def num_processes(plan: Plan, options: LoadOptions) -> int:
    """As asked, else by the plan's rate of requests and tokens. Sessions and closed loops stay in one process: their
    requests follow from each other."""
    joined = any(r.session is not None or r.loop_slots is not None for r in plan.requests)
    asked = options.num_processes
    if asked is not None:
        if asked > 1 and joined:
            raise ConfigError(
                "sessions and closed loops run in one load process", seen=asked, fix="leave num_processes out"
            )
        return asked
    if joined or plan.span_s <= 0:
        return 1
    tokens = sum(request.num_output_tokens for request in plan.requests)
    share = (len(plan.requests) * REQUEST_COST_S + tokens * TOKEN_COST_S) / plan.span_s
    most = min(os.cpu_count() or 1, options.max_concurrency or 1 << 30)
    return max(1, min(most, -int(-share // FULL_SHARE)))


def _result(
    preparation: Preparation, gathered: Gathered, options: LoadOptions, validate: Validate | None
) -> LoadResult:
    plan = preparation.plan
    finished = sorted(gathered.finished, key=lambda done: done.record.id)
    partial = gathered.stopped or bool(gathered.problems)
    span_s = plan.span_s
    ended_s = max((done.record.t_close_ns for done in finished), default=0) / 1e9
    if gathered.stopped:
        span_s = min(span_s, ended_s) if span_s > 0 else ended_s
    if validate is not None:
        _validate(preparation, finished, validate)
    records = [done.record for done in finished]
    if not options.keep_text:
        for record in records:
            record.text = None
    scheduled = {request.id for request in plan.requests if request.at_s is not None and request.at_s <= span_s}
    health = client_health(records, gathered.stats, scheduled=scheduled, span_s=span_s)
    return LoadResult(
        records=records,
        health=health,
        started_wall=_wall(gathered.t0_ns),
        t0_ns=gathered.t0_ns,
        span_s=span_s or ended_s,
        partial=partial,
        problems=gathered.problems,
    )


def _validate(preparation: Preparation, finished: list[Finished], validate: Validate) -> None:
    by_id = {request.id: request for request in preparation.plan.requests}
    for done in finished:
        record = done.record
        if record.outcome is not Outcome.OK:
            continue
        request = by_id[record.id]
        prompt = preparation.prompt_of(request)
        if prompt is not None:
            record.valid = validate(request, prompt, record.text or "", done.tool_calls, record.reason)


def _wall(t0_ns: int) -> str:
    """Wall clock of a moment of the monotonic clock."""
    ago_s = (time.monotonic_ns() - t0_ns) / 1e9
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds")
