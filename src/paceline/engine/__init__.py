"""The engine decides: who runs, on which blocks, in which step, and when it ends.

Requests go in through an `EngineClient` (`client.InProcessClient`, `client.ChildClient`); `loop.EngineCore` plans with
`scheduler.Scheduler`, has an `Executor` compute, applies its results and hands out outputs. `kv_manager` owns blocks,
`journal` records what is needed to replay a run plan by plan, `watchdog` notices a step that does not end.

May import contracts and numpy. Never torch, never text, and, but for `clock`, `client` and `child`, no clock, socket or
process: time comes in as an argument, so the same code runs in simulation. Import from the module that defines a name;
the ones here are those a caller outside needs.
"""

from __future__ import annotations

from paceline.engine.client import ChildClient, InProcessClient
from paceline.engine.clock import WallClock
from paceline.engine.decisions import DecisionRing
from paceline.engine.journal import StepJournal, replay
from paceline.engine.kv_manager import KVManager
from paceline.engine.loop import EngineCore
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import SchedulerSettings

__all__ = [
    "ChildClient",
    "DecisionRing",
    "EngineCore",
    "InProcessClient",
    "KVManager",
    "Scheduler",
    "SchedulerSettings",
    "StepJournal",
    "WallClock",
    "replay",
]
