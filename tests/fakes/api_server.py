"""The API over a real session and engine in this process, with a toy model that says what a test tells it to.

Ids 0 to 255 are bytes, 256 begins a text, 257 ends one; `PIECES` are longer tokens. A request with seed k is answered
with `scripts[k]` where there is one, and with what the toy model draws otherwise.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx
from fastapi import FastAPI
from tests.fakes.builders import make_kv, make_layout
from tests.fakes.scripted_executor import ScriptedExecutor, scripted_caps
from tests.fakes.toy_model import Draw, ToyModel

from paceline.config.server import ServerConfig
from paceline.contracts.request import RequestOutput
from paceline.cost.linear import LinearStepCost
from paceline.engine import EngineCore, Grammars, InProcessClient, Scheduler, SchedulerSettings, WallClock
from paceline.engine.decisions import DecisionRing
from paceline.errors import EngineDeadError
from paceline.server.api import chat, completions, embeddings, messages, models, responses, tokens
from paceline.server.errors import install_error_handlers
from paceline.server.session import EngineSession
from paceline.server.state import ModelCard, ServerState
from paceline.server.telemetry.live import LiveFeed
from paceline.server.telemetry.metrics import ServerMetrics
from paceline.server.tenancy.tenants import TenantBook
from paceline.server.tenancy.usage import UsageLedger, UsageRecord
from paceline.text import ChatTemplate, TextPipeline, TextTokenizer
from paceline.text.byte_level import byte_level_bytes
from paceline.text.grammar import GrammarCompiler

BOS, EOS = 256, 257
PIECES = ("Hello", " world", "he", " été", "END", "xEN", "Dy", "日本")
VOCAB = 258 + len(PIECES)
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
MODEL = "toy"


def piece(index: int) -> int:
    """Id of `PIECES[index]`."""
    return 258 + index


def text_ids(text: str) -> list[int]:
    """A text as byte tokens."""
    return list(text.encode())


def byte_tokenizer(*, add_bos: bool = True, special: Sequence[str] = ()) -> TextTokenizer:
    """`special`: further special tokens, with ids from VOCAB on."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as backends

    signs = {byte_level_bytes(sign)[0]: sign for sign in pre_tokenizers.ByteLevel.alphabet()}
    vocabulary = {signs[byte]: byte for byte in range(256)}
    marks = {"<|start|>": BOS, "<|end|>": EOS, **{text: VOCAB + i for i, text in enumerate(special)}}
    vocabulary |= marks
    vocabulary |= {"".join(signs[b] for b in text.encode()): piece(i) for i, text in enumerate(PIECES)}
    backend = Tokenizer(backends.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in marks])
    return TextTokenizer(
        backend,
        vocab_size=VOCAB + len(special),
        piece_bytes=byte_level_bytes,
        special_tokens={"bos_token": "<|start|>", "eos_token": "<|end|>"},
        eos_token_ids=(EOS,),
        add_bos=add_bos,
    )


@dataclass(frozen=True)
class ScriptedModel(ToyModel):
    """Says `scripts[seed]`, one token after the other, then ends."""

    vocab_size: int = VOCAB
    scripts: dict[int, list[int]] = field(default_factory=dict, compare=False)

    def draw(self, hidden: int, position: int, how: Draw, allowed: Any = None) -> int:
        script = self.scripts.get(how.sampling.seed or 0)
        if script is None:
            return super().draw(hidden, position, how, allowed)
        index = position + 1 - how.num_prompt
        return script[index] if index < len(script) else EOS


class StepGate:
    """Lets the engine compute so many steps, one for each `release`; `open` lets all pass."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._open = False
        self.num_released = self.num_passed = 0  # equal: the engine waits for more, or is about to

    def release(self) -> None:
        self.num_released += 1
        self._permits.release()

    def open(self) -> None:
        self._open = True
        self._permits.release()

    def wait(self) -> None:
        if not self._open:
            assert self._permits.acquire(timeout=20.0), "a step was never let through"
            self.num_passed += 1


class GatedExecutor(ScriptedExecutor):
    """Waits before each step for a gate, where a test has put one."""

    gate: StepGate | None = None

    def poll(self, handle: int, *, block: bool = True) -> Any:
        if self.gate is not None:
            self.gate.wait()
        return super().poll(handle, block=block)


class SkippingClock(WallClock):
    """The wall clock, and what a test adds to it."""

    skipped_s = 0.0

    def now(self) -> float:
        return super().now() + self.skipped_s


class LocalEngine(InProcessClient):
    """As the session wants it: with what a process would tell about itself."""

    info: ClassVar[dict[str, Any]] = {}
    pid = 0

    def outputs(self, timeout_s: float | None = None) -> Iterator[RequestOutput]:
        found = list(super().outputs(timeout_s))
        if not found and self._stop.is_set():
            raise EngineDeadError("the engine process died", seen="closed")
        yield from found


@dataclass
class ApiServer:
    app: FastAPI
    state: ServerState
    engine: LocalEngine
    executor: GatedExecutor
    scripts: dict[int, list[int]]
    records: list[UsageRecord]
    client: httpx.AsyncClient
    clock: SkippingClock

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **options)

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"prompt": prompt, **fields})

    def new_gate(self) -> StepGate:
        """From now on the engine waits at it before each step."""
        self.executor.gate = gate = StepGate()
        return gate

    async def settled(self) -> None:
        """Wait until nothing is open and every block is back."""
        for _ in range(1000):
            kv = self.engine.core.stats().kv
            if self.state.engine.num_open == 0 and kv.held == 0 and kv.limbo == 0:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"not back to the baseline: {self.engine.core.stats()}")


@asynccontextmanager
async def api_server(
    *,
    scripts: dict[int, list[int]] | None = None,
    add_bos: bool = True,
    special: Sequence[str] = (),
    max_model_len: int = 128,
    num_blocks: int = 256,
    template: str | None = TEMPLATE,
    tenants: TenantBook | None = None,
    settings: ServerConfig | None = None,
    fault: Any = None,
    **scheduling: Any,
) -> AsyncIterator[ApiServer]:
    """A server, ready, with a client that talks to it without a socket."""
    scripts = {} if scripts is None else scripts
    tokenizer = byte_tokenizer(add_bos=add_bos, special=special)
    size = tokenizer.vocab_size
    layout = make_layout(num_blocks, 4)
    caps = scripted_caps(layout, max_rows=8, max_tokens=256, vocab_size=size, depth=1)
    executor = GatedExecutor(ScriptedModel(size, scripts=scripts), caps, fault=fault)
    limits = SchedulerSettings(
        **{"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": max_model_len, **scheduling}
    )
    kv = make_kv(caps, limits)
    scheduler = Scheduler(
        limits,
        caps,
        kv,
        LinearStepCost(),
        token_bytes=list(tokenizer.token_bytes()),
        eos_token_ids=(EOS,),
        decisions=DecisionRing(),
    )
    grammars = Grammars(
        GrammarCompiler.of(tokenizer, vocab_size=size, eos_token_ids=[EOS]), vocab_size=size, eos_token_ids=(EOS,)
    )
    core = EngineCore(scheduler, executor, clock := SkippingClock(), grammars=grammars)
    engine = LocalEngine(core, background=True)
    session = EngineSession()
    session.attach(engine)
    records: list[UsageRecord] = []
    sources = {} if template is None else {"default": template}
    state = ServerState(
        settings=settings or ServerConfig(),
        pipeline=TextPipeline(
            tokenizer, ChatTemplate(sources, special_tokens=tokenizer.special_tokens), max_model_len=max_model_len
        ),
        engine=session,
        tenants=tenants or TenantBook.load(secret=b"of the tests"),
        usage=_Kept(records),
        metrics=ServerMetrics(),
        model=ModelCard(id=MODEL, names=(MODEL, "toy/alias"), max_model_len=max_model_len, created=1),
        live=LiveFeed(session),
    )
    app = FastAPI()
    app.state.server = state
    for module in (chat, completions, responses, messages, embeddings, tokens, models):
        app.include_router(module.router)
    install_error_handlers(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://toy", timeout=30.0) as client:
            yield ApiServer(app, state, engine, executor, scripts, records, client, clock)
    finally:
        if executor.gate is not None:
            executor.gate.open()
        session.close()
        engine.close()


class _Kept(UsageLedger):
    """Keeps records instead of writing them."""

    def __init__(self, records: list[UsageRecord]) -> None:
        super().__init__(None)
        self._records = records

    def record(self, record: UsageRecord) -> bool:
        self._records.append(record)
        return True


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON values of a stream that ended as it should."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.content.split(b"\n\n") if line and not line.startswith(b":")]
    assert lines[-1] == b"data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


def texts(chunks: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Joined text by choice, chat or completion."""
    found: dict[int, str] = {}
    for choice in _choices(chunks):
        text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        found[choice["index"]] = found.get(choice["index"], "") + (text or "")
    return found


def finishes(chunks: Sequence[dict[str, Any]]) -> dict[int, str]:
    return {c["index"]: c["finish_reason"] for c in _choices(chunks) if c["finish_reason"] is not None}


def _choices(chunks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        yield from chunk["choices"]


def run(test: Any) -> None:
    """Run an async test body."""
    asyncio.run(test())
