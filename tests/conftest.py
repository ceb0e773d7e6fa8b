"""What all tests share: hypothesis without timing, and the embedded models for tests marked `model`."""

from __future__ import annotations

import os
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

# Machines differ and are shared: a slow example is not a wrong one. Examples are the same in every run, so a red run
# can be repeated; `scripts/test --long` draws new ones.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("long", parent=settings.get_profile("suite"), derandomize=False, max_examples=1000)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr", "") == "long":
        settings.load_profile("long")


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
