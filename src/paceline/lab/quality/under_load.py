"""A load that runs while something else asks questions: batches, preemption and a full cache move answers, too.

The load goes on, plan after plan with new seeds, until the block ends. What it did is told in a sentence, for a score
that claims to be "under load" must say which.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.contracts.slo import Outcome
from paceline.errors import LabError
from paceline.lab.load import HttpTokenCounter, LoadOptions, Progress, Target, run_load
from paceline.lab.workload import Content, WorkloadSpec, make_plan

_END_S = 120.0


class Beside:
    """What the load has done so far."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.num_ok = 0
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.running = threading.Event()
        self.stop = threading.Event()

    @property
    def sentence(self) -> str:
        rate = f", {self.num_sent / self.seconds:.2f} a second" if self.seconds > 0 else ""
        return f"a load ran beside: {self.num_sent} requests{rate}, {self.num_ok} of them ended well"


@contextmanager
def load_beside(target: Target, spec: WorkloadSpec, *, seed: int = 0, salt: str = "beside") -> Iterator[Beside]:
    """The block begins once a request of the load is in flight. Raises LabError if the load cannot be sent, or ended
    before the block did."""
    beside = Beside()
    thread = threading.Thread(target=_run, args=(beside, target, spec, seed, salt), name="load beside", daemon=True)
    thread.start()
    try:
        while not beside.running.wait(0.1):
            if not thread.is_alive():
                raise LabError("the load beside could not be sent", seen=repr(beside.error))
        yield beside
        if not thread.is_alive():
            raise LabError("the load beside ended too early", seen=repr(beside.error))
    finally:
        beside.stop.set()
        thread.join(_END_S)


def _run(beside: Beside, target: Target, spec: WorkloadSpec, seed: int, salt: str) -> None:
    def on_progress(progress: Progress) -> None:
        if progress.num_sent > 0:
            beside.running.set()

    options = LoadOptions(num_processes=0)  # its times are not what is looked at
    try:
        turn = 0
        content = Content(spec, seed, salt, HttpTokenCounter(target))
        asyncio.run(content.prepare())
        while not beside.stop.is_set():
            plan = make_plan(spec, seed=seed + turn, salt=salt)  # another seed: other texts
            found = run_load(target, plan, content, options, on_progress=on_progress, stop=beside.stop)
            beside.num_sent += sum(record.t_send_ns >= 0 for record in found.records)
            beside.num_ok += sum(record.outcome is Outcome.OK for record in found.records)
            beside.seconds += found.span_s
            turn += 1
    except BaseException as error:  # told by whoever waits
        beside.error = error
