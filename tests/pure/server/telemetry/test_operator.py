"""The operator's endpoints over a small app: who is let in, and what they say."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import Depends, FastAPI

from paceline.config.server import ServerConfig
from paceline.contracts.decision import Decision, Kind, Reason
from paceline.contracts.kv import KVStats
from paceline.contracts.ports import EngineStats
from paceline.errors import EngineDeadError
from paceline.server.errors import install_error_handlers
from paceline.server.telemetry import internal, observe
from paceline.server.telemetry.internal import sentence
from paceline.server.telemetry.metrics import ServerMetrics
from paceline.server.telemetry.recent_calls import RecentCalls
from paceline.server.tenancy.auth import admin_only, is_loopback, tenant_of
from paceline.server.tenancy.keys import hash_key
from paceline.server.tenancy.tenants import Tenant, TenantBook
from paceline.server.tenancy.usage import UsageLedger

KV = KVStats(
    total=8, free=8, cached=0, held=0, limbo=0, reserved=0, hit_tokens=0, query_tokens=0, evictions=0, miss_reasons={}
)
WAITED = Decision(
    time=1.0, step=3, request_id=7, kind=Kind.WAIT, reason=Reason.NO_ROWS, numbers={"running": 4.0}
)  # fmt: skip


class Engine:
    """What the endpoints ask of a session."""

    ready, why_not_ready, restarts, phases = True, "", 1, {"weights": 0.5}

    def __init__(self) -> None:
        self.num_resets = 0
        self.alive = True
        self.hangs = False

    async def stats(self) -> EngineStats:
        if self.hangs:
            await asyncio.sleep(3600)
        if not self.alive:
            raise EngineDeadError("the engine is not there")
        return EngineStats(time=1.0, step=4, num_running=3, num_waiting=2, waiting_tokens=9, kv=KV)

    async def decisions(self, request_id: int) -> list[Decision]:
        return [WAITED] if request_id == 7 else []

    async def reset_prefix_cache(self) -> bool:
        self.num_resets += 1
        return True


def make_app(book: TenantBook | None = None, **settings) -> tuple[FastAPI, Engine]:
    app = FastAPI()
    app.state.server = SimpleNamespace(
        settings=ServerConfig(**settings),
        engine=Engine(),
        tenants=TenantBook.load() if book is None else book,
        usage=UsageLedger(),
        metrics=ServerMetrics(),
        calls=RecentCalls(),
        report={"options": [{"name": "block_size", "value": 16, "group": "kv", "reason": "default"}]},
    )
    app.include_router(internal.router)
    app.include_router(observe.router)

    @app.get("/who")
    async def who(tenant: Tenant = Depends(tenant_of)) -> str:  # noqa: B008
        return tenant.name

    @app.get("/admin")
    async def admin(_: None = Depends(admin_only)) -> str:
        return "in"

    install_error_handlers(app)
    return app, app.state.server.engine


def ask(app: FastAPI, path: str, method: str = "GET", peer: str | None = "127.0.0.1", **headers) -> httpx.Response:
    headers = {"host": "127.0.0.1:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}

    async def send() -> httpx.Response:
        async def with_peer(scope, receive, send):
            scope["client"] = None if peer is None else (peer, 5000)
            await app(scope, receive, send)

        transport = httpx.ASGITransport(app=with_peer)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


def tenants_book() -> TenantBook:
    tenants = [Tenant(name=name, classes=("default",)) for name in ("alice", "bob")]
    return TenantBook(tenants, keys=[(hash_key("a"), "alice"), (hash_key("b"), "bob")], from_file=True)


# --- who is let in


def test_a_tenant_is_found_by_either_header():
    app, _ = make_app(tenants_book())
    assert ask(app, "/who", authorization="Bearer b").json() == "bob"
    assert ask(app, "/who", x_api_key="a").json() == "alice"
    for headers in ({}, {"authorization": "Bearer c"}, {"x_api_key": "c"}):
        response = ask(app, "/who", **headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_without_an_admin_key_this_machine_is_the_operator():
    app, _ = make_app()
    for peer in ("127.0.0.1", "::1", "127.8.8.8", "::ffff:127.0.0.1"):
        assert ask(app, "/admin", peer=peer).json() == "in"
    for host in ("localhost:8000", "[::1]:8000", "127.0.0.1"):
        assert ask(app, "/admin", host=host).status_code == 200
    assert ask(app, "/admin", origin="http://localhost:3000", sec_fetch_site="same-origin").status_code == 200


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("10.0.0.7", {}),
        (None, {}),  # a Unix socket: somebody passed it on
        ("127.0.0.1", {"x_forwarded_for": "127.0.0.1"}),
        ("127.0.0.1", {"forwarded": "for=127.0.0.1"}),
        ("127.0.0.1", {"x_real_ip": "127.0.0.1"}),
        ("127.0.0.1", {"host": "evil.example:8000"}),  # a name that was re-bound to this machine
        ("127.0.0.1", {"host": "127.0.0.1.evil.example"}),
        ("127.0.0.1", {"host": ""}),
        ("127.0.0.1", {"origin": "https://evil.example"}),
        ("127.0.0.1", {"origin": "null"}),
        ("127.0.0.1", {"sec_fetch_site": "cross-site"}),
    ],
)
def test_nobody_else_is(peer, headers):
    app, engine = make_app()
    response = ask(app, "/admin", peer=peer, **headers)
    assert response.status_code == 403
    assert "--admin-key" in response.json()["error"]["message"]
    assert ask(app, "/v1/internal/reset_prefix_cache", "POST", peer=peer, **headers).status_code == 403
    assert engine.num_resets == 0


def test_an_admin_key_is_asked_of_everybody_and_opens_from_everywhere():
    app, _ = make_app(tenants_book(), admin_key="root")
    assert ask(app, "/admin").status_code == 401
    assert ask(app, "/admin", authorization="Bearer wrong").status_code == 401
    assert ask(app, "/admin", authorization="Bearer a").status_code == 403  # a tenant's
    assert ask(app, "/admin", peer="10.0.0.7", authorization="Bearer root").json() == "in"
    assert ask(app, "/admin", peer="10.0.0.7", x_api_key="root").json() == "in"
    open_app, _ = make_app(admin_key="root")
    assert ask(open_app, "/admin", authorization="Bearer wrong").status_code == 401


def test_loopback_names():
    assert [h for h in ("localhost", "127.1.2.3", "::1", "0.0.0.0", "10.0.0.1", "", "x") if is_loopback(h)] == [
        "localhost",
        "127.1.2.3",
        "::1",
    ]


# --- what they say


def test_metrics_are_open_unless_tenants_would_see_each_other():
    app, _ = make_app()
    response = ask(app, "/metrics", peer="10.0.0.7")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "paceline:num_requests_running 3.0" in response.text
    assert "paceline:engine_restarts_total 1.0" in response.text
    closed, _ = make_app(tenants_book())
    assert ask(closed, "/metrics", peer="10.0.0.7").status_code == 403
    assert 'paceline:tenant_sequences{tenant="alice"} 0.0' in ask(closed, "/metrics").text
    by_key, _ = make_app(tenants_book(), admin_key="root")
    assert ask(by_key, "/metrics", peer="10.0.0.7", authorization="Bearer root").status_code == 200


@pytest.mark.parametrize("trouble", ["dead", "hangs"])
def test_a_scrape_is_answered_without_the_engine(trouble, monkeypatch):
    app, engine = make_app()
    engine.alive, engine.hangs = trouble != "dead", trouble == "hangs"
    monkeypatch.setattr(observe, "_PATIENCE_S", 0.05)
    response = ask(app, "/metrics")
    assert response.status_code == 200
    assert "paceline:engine_up 0.0" in response.text
    assert "\npaceline:num_requests_running " not in response.text


def test_stats_and_config():
    app, engine = make_app()
    found = ask(app, "/v1/internal/stats").json()
    assert found["engine"]["num_running"] == 3
    assert (found["ready"], found["restarts"], found["phases"]) == (True, 1, {"weights": 0.5})
    assert found["tenants"]["default"]["open"] == 0
    engine.alive = False
    assert ask(app, "/v1/internal/stats").json()["engine"] is None
    assert ask(app, "/v1/internal/config").json()["options"][0]["reason"] == "default"


def test_the_prefix_cache_is_reset_by_post_alone():
    app, engine = make_app()
    assert ask(app, "/v1/internal/reset_prefix_cache").status_code == 405
    assert ask(app, "/v1/internal/reset_prefix_cache", "POST").json() == {"reset": True, "unused": True}
    assert engine.num_resets == 1


def test_why_did_this_request_wait():
    app, _ = make_app()
    app.state.server.calls.note("chatcmpl-abc", [6, 7])
    found = ask(app, "/v1/internal/decisions/chatcmpl-abc").json()
    assert found["sequences"] == [6, 7]
    (entry,) = found["data"]
    assert (entry["kind"], entry["reason"], entry["numbers"]) == ("wait", "no_rows", {"running": 4.0})
    assert entry["sentence"] == "Request 7 waits: all 4 rows of the batch are taken."
    assert ask(app, "/v1/internal/decisions/7").json()["data"] == found["data"]
    assert ask(app, "/v1/internal/decisions/8").json()["data"] == []
    response = ask(app, "/v1/internal/decisions/chatcmpl-other")
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "request_id"


def test_every_reason_has_a_sentence():
    for reason in Reason:
        decision = Decision(time=0.0, step=0, request_id=5, kind=Kind.WAIT, reason=reason, other=6)
        assert sentence(decision).startswith("Request 5 ")
        assert sentence(decision).endswith(".")


def test_only_the_newest_calls_are_remembered_each_by_its_id():
    calls = RecentCalls(max_calls=3)
    for number, name in enumerate(("a", "b", "a", "c"), start=1):
        calls.note(name, [number])
    assert [calls.numbers_of(name) for name in "abcd"] == [[3], [2], [4], []]
    calls.note("a", [8, 9])
    assert calls.numbers_of("a") == [3, 8, 9]
    for _ in range(5):
        calls.note("x", [1])
    assert list(calls._numbers) == ["x"]
