"""Holds a server's process for the lab and ends it with the lab, however that ends: `python keeper.py STOP_S -- ARGV`.

It imports the standard library alone, so that it is up in a few milliseconds. Its standard input is a pipe from the
lab: when that closes (the lab stops the server, ends, or is killed) the server's whole group gets SIGTERM, and SIGKILL
after STOP_S seconds, and so does whatever the server left behind. It ends with the server's exit status, 128 + signal.

First it prints `pid N` on standard output; the server itself writes to standard error, which the lab points at a file.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def main() -> int:
    stop_s, argv = float(sys.argv[1]), sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the pipe ends it: the lab decides
    _adopt_orphans()
    try:
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=sys.stderr.fileno(),
            start_new_session=True,
            preexec_fn=_default_signals,
        )
    except OSError as error:
        print(f"cannot start {argv[0]}: {error}", file=sys.stderr, flush=True)
        return 127
    with suppress(OSError):
        print(f"pid {server.pid}", flush=True)
    _wait(server)
    if server.poll() is None:
        _signal_group(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(stop_s)
    _signal_group(server.pid, signal.SIGKILL)
    code = server.wait()
    _end_orphans()
    return code if code >= 0 else 128 - code


def _wait(server: subprocess.Popen[bytes]) -> None:
    """Until the server has ended or the lab has closed the pipe."""
    pipe = sys.stdin.fileno()
    while server.poll() is None:
        readable, _, _ = select.select([pipe], [], [], _POLL_S)
        if readable and not os.read(pipe, 64):
            return


def _default_signals() -> None:
    """An ignored signal stays ignored over exec; the server must hear its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _adopt_orphans() -> None:
    """Processes that the server loses become ours (Linux); elsewhere its group is all that is ended."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """Kills and reaps what has become ours, until nothing is left."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                left = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
