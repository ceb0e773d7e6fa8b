"""`paceline replay`: does the scheduler decide again what a journal says it decided?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import clean_errors


def replay(journal: Annotated[Path, typer.Argument(help="File that an engine wrote with --journal.")]) -> None:
    """Feed a recorded run to a fresh scheduler and compare every plan; neither model nor device is needed."""
    with clean_errors():
        from paceline.assemble.replay import replay_journal

        result = replay_journal(journal)
        print(f"{result.num_events} events, {len(result.digests)} plans: each is what the recording says")
