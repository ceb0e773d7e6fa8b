"""What request handlers share: one `ServerState` per server, in `request.app.state.server`, complete when they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.server.telemetry.recent_calls import RecentCalls

if TYPE_CHECKING:
    from fastapi import Request

    from paceline.config.server import ServerConfig
    from paceline.server.grammars import GrammarDesk
    from paceline.server.session import EngineSession
    from paceline.server.telemetry.live import LiveFeed
    from paceline.server.telemetry.metrics import ServerMetrics
    from paceline.server.tenancy.tenants import TenantBook
    from paceline.server.tenancy.usage import UsageLedger
    from paceline.text import TextPipeline


@dataclass(frozen=True)
class ModelCard:
    """The model as `/v1/models` shows it."""

    id: str  # the name clients are shown
    names: tuple[str, ...]  # every name it answers to, `id` first
    max_model_len: int  # tokens, prompt and output
    created: int  # Unix seconds: when this server started
    owned_by: str = "paceline"
    root: str = ""  # what was loaded: an alias, a hub id or a path


@dataclass
class ServerState:
    """The parts of a running server."""

    settings: ServerConfig
    pipeline: TextPipeline
    engine: EngineSession
    tenants: TenantBook
    usage: UsageLedger
    metrics: ServerMetrics
    model: ModelCard
    live: LiveFeed
    grammars: GrammarDesk | None = None  # None: grammars go to the engine untried
    calls: RecentCalls = field(default_factory=RecentCalls)  # ids of responses, for "why did this request wait"
    report: dict[str, Any] = field(default_factory=dict)  # the resolved configuration, for operators; holds no secret


def server_of(request: Request) -> ServerState:
    """The state of the server that got this request."""
    state: ServerState = request.app.state.server
    return state
