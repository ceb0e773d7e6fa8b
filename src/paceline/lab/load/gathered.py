"""What all load processes have given, before it is put in order."""

from __future__ import annotations

import msgspec

from paceline.lab.load.generator import WorkerStats
from paceline.lab.load.result import Finished


class Gathered(msgspec.Struct, kw_only=True):
    t0_ns: int = 0
    finished: list[Finished] = []
    stats: list[WorkerStats] = []
    stopped: bool = False
    problems: list[str] = []
