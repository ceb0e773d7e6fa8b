"""A server process over an engine's process: `run_server`. Loads no torch, here or in what it imports."""

from __future__ import annotations

from collections.abc import Callable

from paceline.assemble.engine import spawn_engine
from paceline.assemble.files import find_files, load_template
from paceline.assemble.report import server_options
from paceline.config import EngineConfig, ServerConfig, read_environment
from paceline.phases import OnPhase
from paceline.server.api.offered import dialect_line
from paceline.server.lifespan import Launch, ServerProcess
from paceline.server.session import EngineProcess
from paceline.server.state import ServerState
from paceline.text import ChatTemplate, TextTokenizer, load_tokenizer


def run_server(
    config: EngineConfig, settings: ServerConfig, on_ready: Callable[[ServerState, str], None] | None = None
) -> None:
    """Serve until told to stop; raises as `ServerProcess.run` does. `on_ready` gets the state and the server's URL."""
    ServerProcess(settings, launch_of(config, settings), on_ready).run()


def launch_of(config: EngineConfig, settings: ServerConfig) -> Launch:
    def spawn(on_phase: OnPhase, give_up: Callable[[], bool]) -> EngineProcess:
        return spawn_engine(
            config,
            start_timeout_s=settings.start_timeout_s,
            stall_limit_s=settings.stall_limit_s,
            on_phase=on_phase,
            give_up=give_up,
        )

    def load_text() -> tuple[TextTokenizer, ChatTemplate]:
        files = find_files(config, read_environment())
        tokenizer = load_tokenizer(config.model.tokenizer or files)
        return tokenizer, load_template(config, files, tokenizer)

    return Launch(model=config.model.model, spawn=spawn, load_text=load_text, options=server_options)


__all__ = ["ServerState", "dialect_line", "launch_of", "run_server"]
