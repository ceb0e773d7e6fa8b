"""A server process from its first socket to its exit status.

The port opens first, so that a wrong address is told at once and balancers see why the server is not ready yet. Then
the engine loads in its process while this one loads the tokenizer. A signal drains: nothing new is taken, what runs may
end, the rest is ended with an error. A second signal does not wait.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

import paceline
from paceline.config.server import ServerConfig
from paceline.errors import ConfigError
from paceline.server.app import build_app, limit, wrap
from paceline.server.grammars import GrammarDesk
from paceline.server.health import Gate
from paceline.server.limits import guarded_protocol
from paceline.server.session import EngineSession
from paceline.server.state import ModelCard, ServerState
from paceline.server.supervisor import EngineThread, RestartPolicy, Spawn, Supervisor
from paceline.server.telemetry.live import LiveFeed
from paceline.server.telemetry.metrics import ServerMetrics
from paceline.server.tenancy.tenants import TenantBook
from paceline.server.tenancy.usage import UsageLedger
from paceline.text import ChatTemplate, TextPipeline, TextTokenizer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_log = logging.getLogger("paceline.server")

LoadText = Callable[[], tuple[TextTokenizer, ChatTemplate]]
_FLUSH_S = 2.0  # for last words to reach their clients once every request has ended


@dataclass(frozen=True)
class Launch:
    """What a server serves; made by whoever knows the concrete engine."""

    model: str  # as the operator named it
    spawn: Spawn
    load_text: LoadText  # blocking
    options: Callable[[ServerConfig], list[dict[str, Any]]]  # the server's own, as operators see them


class ServerProcess:
    """Serves until told to stop or until the engine is lost. `on_ready` is called once, when requests are welcome."""

    def __init__(
        self, settings: ServerConfig, launch: Launch, on_ready: Callable[[ServerState, str], None] | None = None
    ) -> None:
        self._settings = settings
        self._launch = launch
        self._on_ready = on_ready
        self._stop: asyncio.Event | None = None
        self._forced = False

    def run(self) -> None:
        """Blocks. Returns when the server was told to stop and did. Raises ConfigError before anything is loaded for a
        wrong address, certificate, tenants file or usage log; later what the engine's start raised, or EngineDeadError.
        """
        settings = self._settings
        self._tenants = TenantBook.of(settings)
        self._usage = UsageLedger(settings.usage_log)
        try:
            with bound_socket(settings.host, settings.port) as listener:
                self._listener = listener
                self.url = _url(settings, listener)
                _log.info("listening on %s", self.url)
                self._threads = EngineThread()  # before this thread is made nicer: what it starts is not
                if settings.nice:
                    os.setpriority(os.PRIO_PROCESS, 0, settings.nice)
                with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                    runner.run(self._main())
        finally:
            self._usage.close()

    async def _main(self) -> None:
        settings = self._settings
        self._stop = asyncio.Event()
        self._session = EngineSession()
        self._gate = Gate(self._session, show_page=not settings.disable_page)
        self._live: LiveFeed | None = None
        self._grammars: GrammarDesk | None = None
        self._supervisor = Supervisor(
            self._session,
            self._launch.spawn,
            self._threads,
            RestartPolicy(restart=settings.restart, max_restarts=settings.max_restarts),
            stall_limit_s=settings.stall_limit_s,
        )
        self._log = wrap(self._gate, settings)
        http = _Http(_http_config(self._log, settings))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(http.serve(sockets=[self._listener]), name="paceline-http")
        engine = asyncio.create_task(self._supervisor.run(), name="paceline-supervisor")
        starting = asyncio.create_task(self._start(), name="paceline-start")
        stopping = asyncio.create_task(self._stop.wait(), name="paceline-stop")
        try:
            await asyncio.wait({serving, engine, starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception() is None:
                await asyncio.wait({serving, engine, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and self._session.alive and not self._forced:
                await self._drain()
        finally:
            failure = next((e for t in (engine, starting) if t.done() and (e := t.exception()) is not None), None)
            await self._end(http, serving, [engine, starting, stopping])
        if failure is not None:
            raise failure

    async def _start(self) -> None:
        """Text here and weights there, at once; then the application."""
        began = time.monotonic()
        tokenizer, template = await self._session.text(self._launch.load_text)
        text_s = time.monotonic() - began
        await self._session.first_engine()
        info = self._session.info
        pipeline = TextPipeline(tokenizer, template, max_model_len=info["max_model_len"])
        self._grammars = GrammarDesk.of(tokenizer)
        state = self._build_state(pipeline, {"server: tokenizer": text_s})
        self._log.on_response = state.metrics.on_response
        self._gate.open(limit(build_app(state), self._settings))
        _spare_the_collector()
        if self._on_ready is not None:
            self._on_ready(state, self.url)

    def _build_state(self, pipeline: TextPipeline, phases: dict[str, float]) -> ServerState:
        settings, info = self._settings, self._session.info
        names = settings.served_model_name or (self._launch.model,)
        model = ModelCard(
            id=names[0],
            names=tuple(dict.fromkeys((*names, self._launch.model))) if not settings.served_model_name else names,
            max_model_len=info["max_model_len"],
            created=int(time.time()),
            root=self._launch.model,
        )
        device = info.get("device", {}).get("name")
        options = [*info.get("options", ()), *self._launch.options(settings)]
        report = {**{k: v for k, v in info.items() if k != "options"}, "phases": info.get("phases", {}) | phases}
        self._warn(options)
        self._live = LiveFeed(self._session, about={"model": model.id, "max_model_len": model.max_model_len})
        return ServerState(
            settings=settings,
            pipeline=pipeline,
            engine=self._session,
            tenants=self._tenants,
            usage=self._usage,
            metrics=ServerMetrics(
                tenants=self._tenants.names,
                classes=tuple(self._tenants.classes),
                ledger=self._usage,
                info={"version": paceline.__version__, **info, "model": model.id, "device": device},
            ),
            model=model,
            live=self._live,
            grammars=self._grammars,
            report={"options": options, **report},
        )

    def _warn(self, options: list[dict[str, Any]]) -> None:
        """What an operator with tenants may have overlooked."""
        tenants = self._tenants
        policy = next((row["value"] for row in options if row["name"] == "scheduling.policy"), None)
        if policy is not None and policy != tenants.suggested_policy == "fair":
            _log.warning("several tenants share this engine by class and arrival alone; --policy fair shares it evenly")
        if tenants.from_file and not tenants.has_secret:
            _log.warning("no server_secret: the tenants' cache salts change with every start")

    # --- the end

    def _on_signal(self, number: int) -> None:
        assert self._stop is not None
        name = signal.Signals(number).name
        if not self._stop.is_set():
            _log.info("%s: draining, at most %g s; once more to stop now", name, self._settings.drain_timeout_s)
            self._stop.set()
        else:
            _log.warning("%s again: stopping now", name)
            self._forced = True
            self._supervisor.let_go()  # ends the drain: nothing is open any more

    async def _drain(self) -> None:
        left = self._session.num_open
        whole = await self._session.drain(self._settings.drain_timeout_s)
        _log.info("drained: %d requests were open, %s", left, "all ended" if whole else "some were cut off")

    async def _end(self, http: _Http, serving: asyncio.Task[None], tasks: list[asyncio.Task[Any]]) -> None:
        if self._live is not None:
            await self._live.close()
        self._supervisor.let_go()
        http.should_exit = True
        http.force_exit = self._forced
        with suppress(asyncio.CancelledError):
            await serving
        await self._supervisor.close()
        self._session.end_threads()
        if self._grammars is not None:
            self._grammars.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _spare_the_collector() -> None:
    """What was loaded stays for good: the garbage collector need not look at it with every few hundred requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class _Http(uvicorn.Server):
    """Without uvicorn's own signal handlers, which end the process by the signal after it has shut down."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http_config(app: ASGIApp, settings: ServerConfig) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=guarded_protocol(settings),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.root_path,
        timeout_keep_alive=max(1, round(settings.keep_alive_timeout_s)),
        timeout_graceful_shutdown=max(1, round(_FLUSH_S)),
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            "the certificate or its key cannot be used",
            seen=f"{settings.ssl_certfile}, {settings.ssl_keyfile}: {error}",
            expected="a PEM certificate chain and its private key",
        ) from None
    return config


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listening there, or ConfigError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(
            "the server cannot listen there: not an address of this machine", seen=f"{host}: {error}", fix="--host"
        ) from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(
            "the server cannot listen there",
            seen=f"{host} port {port}: {error.strerror}",
            fix="choose another --port (0 takes a free one), or end what listens there",
        ) from None
    with listener:
        yield listener


def _url(settings: ServerConfig, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
