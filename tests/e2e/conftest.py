"""The program as a user starts it, a process of its own; and a browser for its pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fakes.server_process import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
def paceline() -> Run:
    """Run `paceline ARGS`; standard input is empty unless given."""

    def run(*args: str, stdin: str = "", timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "paceline.cli.main", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "COLUMNS": "200"},  # help and tables in full
        )

    return run


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model's file, for tests marked `model`."""
    from paceline import hub
    from paceline.config import read_environment

    return hub.resolve("smollm2-135m", read_environment().home, download=False).path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium. Without one such tests are skipped; under CI that is a failure."""
    found = subprocess.run([ROOT / "scripts" / "browser"], capture_output=True, text=True, check=False)
    if found.returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(found.stderr)
        pytest.skip(found.stderr)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()
