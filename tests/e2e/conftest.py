"""The program as a user starts it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


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
