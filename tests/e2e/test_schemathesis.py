"""What `/openapi.json` promises, tried by schemathesis: no answer is a 5xx, and every answer is one it describes.

The long test goes on for ten minutes and looks for leaks: blocks, open files, memory of the server and its engine.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.fakes.served_toy import ADMIN_KEY, Served, serve_toy

NOT_SERVED = ("/v1/embeddings",)  # a 501 that is described


def no_failure(ctx: Any, response: Any, case: schemathesis.Case) -> bool | None:
    """No 5xx, but for the 501 of what is not served."""
    if response.status_code == 501 and case.operation.path in NOT_SERVED:
        return None
    return not_a_server_error(ctx, response, case)


CHECKS = [no_failure, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = 6  # calls of each operation
ROUND = 25  # the same, in the long test
MINUTES = 10.0
SLACK_BYTES = 24 << 20  # what the second half may add: verdicts and prefixes are remembered


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy() as server:
        yield server


def operations_of(server: Served) -> list[Any]:
    """All but the stream that never ends."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if not operation.path.endswith("/internal/live")]


def try_operation(server: Served, operation: Any, examples: int, number: int) -> int:
    """`examples` random calls of one operation; how many were made. `number` makes them others."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"} if "/internal/" in operation.path else {}
    called = 0

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def attempt(case: schemathesis.Case) -> None:
        nonlocal called
        response = case.call(base_url=server.url, headers=headers, timeout=60)
        case.validate_response(response, checks=CHECKS)
        called += 1

    attempt()
    return called


def held(server: Served) -> tuple[int, int]:
    """File descriptors, and bytes of memory, of the server and its engine. Raises if blocks are held."""
    server.wait_idle()
    processes = [psutil.Process(pid) for pid in (server.pid, server.engine_pid())]
    return sum(p.num_fds() for p in processes), sum(p.memory_info().rss for p in processes)


def test_the_description_holds(served: Served) -> None:
    called = {o.label: try_operation(served, o, FEW, 0) for o in operations_of(served)}
    assert {"POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "POST /tokenize"} <= set(called)
    assert {"POST /v1/responses", "POST /v1/messages", "POST /v1/messages/count_tokens"} <= set(called)
    served.wait_idle()
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_every_route_is_on_the_page_of_the_api(served: Served) -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text(encoding="utf-8").split())
    paths = httpx.get(f"{served.url}/openapi.json").json()["paths"]
    assert len(paths) > 15
    told = [f"{method.upper()} {re.sub('{.*}', '{id}', path)}" for path, methods in paths.items() for method in methods]
    assert not sorted(route for route in told if f"`{route}`" not in page)


@pytest.mark.long
def test_ten_minutes_of_it_leak_nothing(served: Served) -> None:
    operations, engine = operations_of(served), served.engine_pid()
    called: Counter[str] = Counter()
    found: list[tuple[int, int]] = []
    until = time.monotonic() + MINUTES * 60
    while time.monotonic() < until:
        for operation in operations:
            called[operation.label] += try_operation(served, operation, ROUND, len(found))
        found.append(held(served))
    print(f"{sum(called.values())} calls: {dict(called)}\nopen files and bytes after each round: {found}")
    assert served.engine_pid() == engine, "the engine was restarted"
    assert "Traceback" not in served.log(), served.log()[-5000:]
    assert len(found) >= 4, "too slow a machine to say anything"
    files, memory = zip(*found[len(found) // 2 :], strict=True)
    assert files[-1] <= files[0] + 8, f"open files grow: {found}"  # connections come and go
    assert memory[-1] - memory[0] <= SLACK_BYTES, f"memory grows: {found}"
