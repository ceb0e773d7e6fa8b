"""Running the mock in the foreground, for the command line and for `MockProcess`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import PacelineError
from paceline.lab.mock.app import MockApp
from paceline.lab.mock.loading import load_script, script_json
from paceline.lab.mock.loops import new_loop
from paceline.lab.mock.script import Script
from paceline.lab.mock.server import listen, shut, url_of


def run_mock(
    script: Script, *, host: str, port: int, announce: Callable[[str], None], until_stdin_closes: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM. `announce` gets the base URL once connections are taken."""
    raise_file_limit()
    gc.freeze()  # collections in the middle of a reply would make it late: fewer, and of new objects only
    gc.set_threshold(50_000, 50, 1000)
    loop = new_loop(timed=not script.takes_no_time)
    try:
        loop.run_until_complete(_serve(script, host, port, announce, until_stdin_closes))
    finally:
        loop.close()


async def _serve(
    script: Script, host: str, port: int, announce: Callable[[str], None], until_stdin_closes: bool
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # not on Windows
            loop.add_signal_handler(number, stop.set)
    app = MockApp(script)
    server = await listen(app, host, port)
    if until_stdin_closes:
        loop.add_reader(0, _watch_stdin, stop)
    announce(url_of(server))
    try:
        await stop.wait()
    finally:
        await shut(server, app)


def _watch_stdin(stop: asyncio.Event) -> None:
    if not os.read(0, 65536):
        asyncio.get_running_loop().remove_reader(0)
        stop.set()


def raise_file_limit() -> None:
    """As many open files as the system lets this user have: each connection is one."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m paceline.lab.mock`: prints its URL on one line, then serves."""
    parser = argparse.ArgumentParser(prog="python -m paceline.lab.mock", description="A scripted server.")
    parser.add_argument("--script", type=Path, help="TOML or JSON; without one, a server that takes no time")
    parser.add_argument("--script-from-stdin", action="store_true", help="JSON on one line; ends when stdin closes")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    given = parser.parse_args(arguments)
    try:
        if given.script_from_stdin:
            script = script_json(sys.stdin.buffer.readline())
        else:
            script = load_script(given.script) if given.script is not None else Script()
        run_mock(
            script,
            host=given.host,
            port=given.port,
            announce=lambda url: print(url, flush=True),
            until_stdin_closes=given.script_from_stdin,
        )
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
