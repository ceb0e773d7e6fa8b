"""What this client can do on this machine: the load it keeps on time against a server that takes no time.

The null server is a program of its own, so it takes a core as the server under test would. What is reached against it
is the client's own limit; a measurement near it says nothing about the server.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec

from paceline.contracts.artefact import ClientHealth, TargetInfo
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest, RenderedPrompt
from paceline.errors import LabError
from paceline.lab.load.options import LoadOptions
from paceline.lab.load.run import run_load
from paceline.lab.load.target import Target

MARGIN = 1.2  # over the planned rate
MIN_RPS = 50.0  # fewer requests say little about lateness
START_S = 20.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    offered_rps: float
    rps: float  # reached
    lag_p99_ms: float
    num_failed: int  # requests that the null server did not answer well
    health: ClientHealth

    @property
    def holds(self) -> bool:
        """The rate was kept within 1 %."""
        return self.rps >= 0.99 * self.offered_rps and not self.num_failed


class NullPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Equal requests at even times."""

    requests: tuple[PlannedRequest, ...]
    span_s: float
    drain_s: float = 10.0


class NullContent:
    """The same short prompt for all."""

    def __init__(self, num_words: int) -> None:
        self._prompt = RenderedPrompt(messages=[{"role": "user", "content": " ".join(["word"] * num_words)}])

    def render(self, request: PlannedRequest, history: object = None) -> RenderedPrompt:
        return self._prompt


def calibrate_client(
    plan_rate: float,
    *,
    num_output_tokens: int = 8,
    num_prompt_words: int = 64,
    seconds: float = 3.0,
    options: LoadOptions | None = None,
    margin: float = MARGIN,
) -> Calibration:
    """Offer `margin * plan_rate` requests/s (at least `MIN_RPS`) of `num_output_tokens` tokens each to a null server
    for so long. Of `options` only the number of processes counts.

    Raises LabError where the null server cannot be started.
    """
    rate = max(MIN_RPS, plan_rate * margin)
    options = LoadOptions(num_processes=None if options is None else options.num_processes)
    with null_server() as url:
        return offer(null_target(url), rate, seconds, num_output_tokens, num_prompt_words, options)


def offer(
    target: Target,
    rate: float,
    seconds: float,
    num_output_tokens: int,
    num_prompt_words: int,
    options: LoadOptions | None = None,
) -> Calibration:
    """As `calibrate_client`, against a target that is there."""
    count = max(1, round(rate * seconds))
    requests = tuple(
        PlannedRequest(id=i, stream="null", at_s=i / rate, num_output_tokens=num_output_tokens) for i in range(count)
    )
    plan = NullPlan(requests=requests, span_s=count / rate)
    result = run_load(target, plan, NullContent(num_prompt_words), options)
    return Calibration(
        offered_rps=rate,
        rps=result.health.achieved_rps,
        lag_p99_ms=result.health.lag_p99_ms,
        num_failed=sum(record.outcome is not Outcome.OK for record in result.records),
        health=result.health,
    )


def null_target(url: str) -> Target:
    """What a probe would find of the null server."""
    info = TargetInfo(url=url, model="mock", kind="paceline", ignore_eos=True, chunk_usage=True, final_usage=True)
    return Target(info=info, chunk_counts="paceline")


@contextlib.contextmanager
def null_server(*, tpot_ms: float = 0.0) -> Iterator[str]:
    """Its URL. It ends with the block, and with this process."""
    script = {"flavour": "paceline", "service": {"tpot_ms": tpot_ms}, "log_chunks": False}
    command = [sys.executable, "-m", "paceline.lab.mock", "--script-from-stdin"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    timer = threading.Timer(START_S, child.kill)
    timer.start()
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(script) + b"\n")
            child.stdin.flush()
        url = child.stdout.readline().decode().strip()
        timer.cancel()
        if not url.startswith("http"):
            raise LabError("the null server did not start", fix="try `python -m paceline.lab.mock`")
        yield url
    finally:
        timer.cancel()
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            child.communicate(timeout=START_S)  # closing its input ends it
        if child.poll() is None:
            child.kill()
            child.wait()
