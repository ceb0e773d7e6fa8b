"""What `/openapi.json` promises, tried by schemathesis: no answer is a 5xx, and every answer is one it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
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


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy() as server:
        yield server


def try_operation(server: Served, operation: Any, examples: int) -> int:
    """`examples` random calls of one operation; how many were made."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"} if "/internal/" in operation.path else {}
    called = 0

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
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


def try_all(server: Served, examples: int) -> dict[str, int]:
    """Every operation; what was called how often."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    endless = ("/internal/live",)
    called = {o.label: try_operation(server, o, examples) for o in operations if not o.path.endswith(endless)}
    server.wait_idle()
    assert httpx.get(f"{server.url}/health").status_code == 200
    return called


def test_the_description_holds(served: Served) -> None:
    called = try_all(served, FEW)
    assert {"POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "POST /tokenize"} <= set(called)
    assert {"POST /v1/responses", "POST /v1/messages", "POST /v1/messages/count_tokens"} <= set(called)


@pytest.mark.long
def test_the_description_holds_for_long(served: Served) -> None:
    try_all(served, 300)
