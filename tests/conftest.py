"""What all tests share: hypothesis without timing, and the embedded models for tests marked `model`."""

from __future__ import annotations

import gc
import os
from functools import cache

import httpx._transports.default as httpx_transport
import pytest
from hypothesis import HealthCheck, settings

# Machines differ and are shared: a slow example is not a wrong one. Examples are the same in every run, so a red run
# can be repeated; `scripts/test --long` draws new ones.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    max_examples=40,  # the long run has a thousand
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("long", parent=settings.get_profile("suite"), derandomize=False, max_examples=1000)
settings.load_profile("suite")

# These begin first, so that no core waits for one of them in the end.
TAKES_LONG = (
    "tests/cpu/embedded/",
    "tests/cpu/test_memory_limit",
    "tests/e2e/test_tune",
    "tests/e2e/test_soak",
    "tests/e2e/test_bench_command",
)

# Collecting tests makes a million objects that stay: looking for garbage among them takes as long as making them.
gc.disable()
# A load of the lab freezes what is there and gives it back: each later collection would look through all of that, for
# a second.
gc.unfreeze = lambda: None

# httpx reads the machine's certificates for every client: 45 ms each, and tests that poll a server make thousands.
httpx_transport.create_ssl_context = cache(httpx_transport.create_ssl_context)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr", "") == "long":
        settings.load_profile("long")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(TAKES_LONG))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@cache
def _why_missing(name: str) -> str | None:
    """None when the files of an embedded model are there, else what the hub says."""
    from paceline import hub
    from paceline.config import read_environment
    from paceline.errors import PacelineError

    try:
        hub.resolve(name, read_environment().home, download=False)
    except PacelineError as error:
        return str(error)
    return None


@pytest.fixture(autouse=True)
def _embedded_model(request: pytest.FixtureRequest) -> None:
    """Skip a test marked `model("name", ...)` whose files are missing; under CI that is a failure."""
    marker = request.node.get_closest_marker("model")
    if marker is None:
        return
    for name in marker.args or ("smollm2-135m", "gemma3-270m"):
        why = _why_missing(name)
        if why is not None and os.environ.get("CI") == "true":
            pytest.fail(f"model {name} is missing: {why}")
        if why is not None:
            pytest.skip(f"model {name} is missing (scripts/demo or `paceline models pull {name}` fetches it): {why}")
