"""The engine decides: who runs, on which blocks, in which step, and when it ends.

Requests go in through an `EngineClient` (`client.InProcessClient`, `child_client.ChildClient`); `loop.EngineCore` plans
with `scheduler.Scheduler`, has an `Executor` compute, applies its results and hands out outputs. `kv_manager` owns
blocks, `journal` records what is needed to replay a run plan by plan (`journal_file`: in a file), `watchdog` notices a
step that does not end.

May import contracts and numpy. Never torch, never text, and, but for `clock`, `client`, `child`, `child_client` and
`journal_file`, no clock, socket, file or process: time comes in as an argument, so the same code runs in simulation.
Import from the module that defines a name; the ones here are those a caller outside needs.
"""

from __future__ import annotations

from paceline.engine.child_client import ChildClient
from paceline.engine.client import InProcessClient
from paceline.engine.clock import WallClock
from paceline.engine.decisions import DecisionRing
from paceline.engine.grammars import Grammars
from paceline.engine.journal import StepJournal, replay
from paceline.engine.journal_file import ServedStep, begin_journal, read_journal, replay_file, served_steps
from paceline.engine.kv_manager import KVManager
from paceline.engine.loop import EngineCore
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import SchedulerSettings

__all__ = [
    "ChildClient",
    "DecisionRing",
    "EngineCore",
    "Grammars",
    "InProcessClient",
    "KVManager",
    "Scheduler",
    "SchedulerSettings",
    "ServedStep",
    "StepJournal",
    "WallClock",
    "begin_journal",
    "read_journal",
    "replay",
    "replay_file",
    "served_steps",
]
