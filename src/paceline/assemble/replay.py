"""A recorded journal, run through a fresh scheduler with the cost model that the recording began with."""

from __future__ import annotations

from pathlib import Path

from paceline.cost import restore
from paceline.engine import replay_file
from paceline.engine.journal import Replay


def replay_journal(path: Path) -> Replay:
    """Raises EngineError at the first plan that differs, and for what is no whole journal."""
    return replay_file(path, restore)
