"""Servers with what proofs need of them: who they are, how full they are, and the same engine in this process.

with serve_toy() as served: ...            the toy engine; `serial_toy()` answers as it must
with serve_tiny(folder) as served: ...     `paceline serve` on a tiny random model; `serial_tiny(folder)`
with serve_simulated() as served: ...      invented tokens, no time per step
with serve_model("smollm2-135m") as served: ...
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from tests.fakes.byte_model import VOCAB_SIZE, write_byte_model
from tests.fakes.http_traffic import World
from tests.fakes.serial_answers import Serial
from tests.fakes.server_engines import EngineOptions, build_engine
from tests.fakes.server_process import PATIENCE_S, RunningServer, eventually, running_server, started
from tests.fakes.server_text import toy_text, toy_tokenizer

from paceline.engine import InProcessClient
from paceline.text import TextPipeline

ADMIN_KEY = "the-operators-key"
TINY: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "numerics": "reference"}  # exact, whatever runs beside it
TINY_SIZES: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "prefill_chunk_tokens": 16,
    "expected_context": 128,
}


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    process: RunningServer
    model: str
    max_model_len: int
    vocab_size: int

    @property
    def url(self) -> str:
        """Without /v1."""
        return self.process.base_url

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def engine_pid(self) -> int:
        return self.process.child_pid

    def log(self) -> str:
        return self.process.log()

    def running(self) -> bool:
        return self.process.process.poll() is None

    def stats(self) -> dict[str, Any]:
        """The engine's, as the operator sees them."""
        reply = httpx.get(
            f"{self.url}/v1/internal/stats", headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=PATIENCE_S
        )
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()["engine"]
        return found

    def wait_until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        last: list[Any] = []

        def look() -> bool:
            last[:] = [self.stats()]
            return condition(last[0])

        try:
            eventually(look, pause_s=0.005)
        except AssertionError as error:
            raise AssertionError(f"{error}; the last look: {last}\n{self.log()[-3000:]}") from None

    def wait_idle(self) -> None:
        """Until nothing runs or waits, and every block is free or only cached."""
        self.wait_until(
            lambda stats: (
                stats["num_running"] == stats["num_waiting"] == 0
                and stats["kv"]["held"] == stats["kv"]["limbo"] == stats["kv"]["reserved"] == 0
                and stats["kv"]["free"] + stats["kv"]["cached"] == stats["kv"]["total"]
            )
        )

    def world(self, max_body_bytes: int, letters: str) -> World:
        """For random traffic. `letters`: what the model's text is likely made of."""
        return World(self.model, self.vocab_size, self.max_model_len, letters, max_body_bytes)


@contextmanager
def serve_toy(engine: dict[str, Any] | None = None, **server: Any) -> Iterator[Served]:
    """The toy engine. `engine`: fields of `EngineOptions`; keywords: options of the server."""
    options = EngineOptions(**(engine or {}))
    with running_server(engine, **{"admin_key": ADMIN_KEY, **server}) as process:
        names = server.get("served_model_name") or ("toy",)
        yield Served(process, names[0], options.max_model_len, toy_tokenizer().vocab_size)


@contextmanager
def serve_simulated(engine: dict[str, Any] | None = None, **server: Any) -> Iterator[Served]:
    options = {"kind": "simulated", "fixed_ms": 0.0, **(engine or {})}
    with serve_toy(options, **server) as served:
        yield served


def serial_toy(engine: dict[str, Any] | None = None) -> Serial:
    """The engine of `serve_toy`, asked for one sequence at a time."""
    options = EngineOptions(**(engine or {}))
    pipeline = TextPipeline(*toy_text(), max_model_len=options.max_model_len)
    return Serial(pipeline, InProcessClient(build_engine(options)))


@contextmanager
def serve_model(model: str, **options: Any) -> Iterator[Served]:
    """`paceline serve`. Options of engine and server, as flags."""
    flags = {"model": model, "port": 0, "admin_key": ADMIN_KEY, **options}
    argv = [sys.executable, "-m", "paceline.cli.main", "serve"]
    argv += [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as folder, started(argv, Path(folder) / "log") as process:
        process.wait_ready(300.0)
        (card,) = httpx.get(f"{process.base_url}/v1/models").json()["data"] if "tenants" not in options else ({},)
        yield Served(process, card.get("id", model), card.get("max_model_len", 0), VOCAB_SIZE)


@contextmanager
def serve_tiny(folder: Path, **server: Any) -> Iterator[Served]:
    """`paceline serve` on a random model with every byte in its vocabulary, written to `folder` if it is not there."""
    path = folder / "tiny"
    if not path.exists():
        write_byte_model(path)
    with serve_model(str(path), **TINY, **TINY_SIZES, served_model_name="tiny", **server) as served:
        yield served


@contextmanager
def serial_tiny(folder: Path) -> Iterator[Serial]:
    """The model of `serve_tiny` in this process, one sequence at a time."""
    from paceline import LLM

    with LLM(str(folder / "tiny"), **TINY, **TINY_SIZES) as llm:
        yield Serial(llm._engine.pipeline, llm.client)
