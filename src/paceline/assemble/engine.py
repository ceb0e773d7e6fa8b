"""Engines with a client: in this process with text around it, or in a child process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from paceline.assemble.core import Core, build_core
from paceline.assemble.files import load_template
from paceline.config import EngineConfig, Environment, child_environment
from paceline.engine import ChildClient, InProcessClient
from paceline.phases import OnPhase
from paceline.text import TextPipeline


@dataclass(frozen=True)
class Engine:
    """An engine with text around it."""

    built: Core
    client: InProcessClient
    pipeline: TextPipeline


def build_engine(
    config: EngineConfig, *, environment: Environment | None = None, on_phase: OnPhase | None = None
) -> Engine:
    """A ready engine in this process. Raises ConfigError, ModelError or CapacityError before anything is served."""
    built = build_core(config, environment=environment, on_phase=on_phase)
    template = load_template(config, built.files, built.tokenizer)
    pipeline = TextPipeline(built.tokenizer, template, max_model_len=built.memory.max_model_len)
    return Engine(built=built, client=InProcessClient(built.core), pipeline=pipeline)


def spawn_engine(
    config: EngineConfig,
    *,
    start_timeout_s: float = 300.0,
    stall_limit_s: float = 120.0,
    on_phase: OnPhase | None = None,
    give_up: Callable[[], bool] | None = None,
) -> ChildClient:
    """The engine in a child process, which ends with this one. Raises what its start-up raised.

    `on_phase` is told the name of each phase of the start as it begins; once `give_up` says true, the start is ended
    with EngineError. A step longer than `stall_limit_s` shows in `stats()`.
    """
    text = msgspec.json.encode(config).decode()
    return ChildClient(
        [sys.executable, "-m", "paceline.assemble", "--stall-limit-s", str(stall_limit_s), text],
        environment=child_environment(),
        start_timeout_s=start_timeout_s,
        on_phase=on_phase,
        give_up=give_up,
    )
