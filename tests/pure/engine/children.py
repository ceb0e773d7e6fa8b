"""Real child processes of the toy engine, and what tests do with them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.contracts.request import RequestOutput
from paceline.engine.child_client import ChildClient

ROOT = Path(__file__).parents[3]


def argv(mode: str) -> list[str]:
    return [sys.executable, "-m", "tests.fakes.child_main", mode]


@contextmanager
def child(mode: str = "serve", command: list[str] | None = None) -> Iterator[ChildClient]:
    client = ChildClient(
        command or argv(mode), environment={**os.environ, "PYTHONPATH": str(ROOT)}, start_timeout_s=30.0
    )
    try:
        yield client
    finally:
        client.close()


def pull(client: ChildClient, until: int) -> list[RequestOutput]:
    """Outputs until `until` requests have ended."""
    outputs: list[RequestOutput] = []
    end = time.monotonic() + 30
    while sum(o.finish is not None for o in outputs) < until:
        assert time.monotonic() < end, outputs
        outputs.extend(client.outputs(timeout_s=1.0))
    return outputs


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
