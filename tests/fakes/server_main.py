"""A whole server over a test engine: `python -m tests.fakes.server_main ENGINE_JSON SERVER_JSON`.

Everything but the engine's executor and the vocabulary is what `paceline serve` runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import msgspec
from tests.fakes.server_engines import EngineOptions
from tests.fakes.server_text import toy_text

from paceline.assemble.report import server_options
from paceline.cli.errors import clean_errors
from paceline.cli.serve import announce, raise_file_limit, start_logging
from paceline.config import load_server_config
from paceline.engine import ChildClient
from paceline.server.lifespan import Launch, ServerProcess

MODEL = "toy"


def main() -> None:
    engine = msgspec.json.decode(sys.argv[1], type=EngineOptions)
    settings = load_server_config(flags=json.loads(sys.argv[2]))

    def spawn(on_phase: Callable[[str], None], give_up: Callable[[], bool]) -> ChildClient:
        text = msgspec.json.encode(engine).decode()
        return ChildClient(
            [sys.executable, "-m", "tests.fakes.server_child", text, str(settings.stall_limit_s)],
            environment=dict(os.environ),
            start_timeout_s=settings.start_timeout_s,
            on_phase=on_phase,
            give_up=give_up,
        )

    start_logging(settings.log_level)
    raise_file_limit()
    launch = Launch(model=MODEL, spawn=spawn, load_text=toy_text, options=server_options)
    ServerProcess(settings, launch, announce).run()


if __name__ == "__main__":
    import typer

    try:
        with clean_errors():
            main()
    except typer.Exit as end:
        sys.exit(end.exit_code)
