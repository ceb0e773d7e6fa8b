"""The soak: steady load with cancels and disconnects, in phases; after each the server comes to rest and is looked at.

Load is a closed loop by default, which any server can carry; with a rate it is a Poisson stream. Every phase asks new
texts, so that prefix caches fill and evict. The watchdog is a limit on each request and on the silence of all.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from paceline.contracts.artefact import NEVER, TOKEN_KINDS, RequestRecord
from paceline.contracts.slo import Outcome
from paceline.errors import ConfigError, LabError
from paceline.lab.gates.soak_result import Phase, SoakResult, write_soak
from paceline.lab.gates.vitals import Vitals
from paceline.lab.load import HttpTokenCounter, LoadOptions, LoadResult, Progress, probe, run_load
from paceline.lab.load.target import Target
from paceline.lab.workload import Content, load_spec, make_plan

_GOODBYES = (Outcome.CLIENT_CANCEL, Outcome.DISCONNECT)
_MOST_RPS = 20.0  # planned for a closed loop: a phase whose requests run out just ends sooner
_PHASES = 24  # that a soak is cut into
_SHORTEST_S, _LONGEST_S = 2.0, 600.0


class SoakOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float
    phase_s: float | None = None  # load between two checkpoints; None: a 24th of the whole, 2 s to 10 min
    slots: int = 4  # clients of the closed loop
    rate_rps: float | None = None  # an open loop instead
    cancel_share: float = 0.05
    disconnect_share: float = 0.05
    input_tokens: tuple[int, int] = (32, 256)
    output_tokens: tuple[int, int] = (4, 64)
    watchdog_s: float = 60.0
    idle_wait_s: float = 30.0  # most that is waited for rest
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.watchdog_s <= 0 or self.slots < 1:
            raise ConfigError(
                "the soak's options are out of range",
                seen=f"{self.seconds:g} s, watchdog {self.watchdog_s:g} s, {self.slots} slots",
                expected="all above 0",
            )

    @property
    def phase(self) -> float:
        """Seconds of load between two checkpoints."""
        return self.phase_s or min(_LONGEST_S, max(_SHORTEST_S, self.seconds / _PHASES))


def soak_spec(options: SoakOptions, max_model_len: int | None) -> dict[str, Any]:
    """The workload of one phase, as a spec."""
    closed = {"kind": "closed", "slots": options.slots}
    arrival = closed if options.rate_rps is None else {"kind": "poisson", "rate": options.rate_rps}
    lengths = {
        name: {"kind": "uniform", "min": low, "max": high}
        for name, (low, high) in (("input", options.input_tokens), ("output", options.output_tokens))
    }
    faults = {
        "cancel_share": options.cancel_share,
        "disconnect_share": options.disconnect_share,
        "disconnect_after_s": [0.02, 0.5],
    }
    spec: dict[str, Any] = {
        "name": "soak",
        "duration_s": options.phase,
        "drain_s": options.watchdog_s + 10,
        "stream": [{"name": "soak", "arrival": arrival, **lengths, "faults": faults}],
    }
    if options.rate_rps is None:
        spec["num_requests"] = max(options.slots, round(options.phase * _MOST_RPS))
    if max_model_len is not None:
        spec["max_model_len"] = max_model_len
    return spec


def run_soak(
    url: str,
    options: SoakOptions,
    *,
    api_key: str | None = None,
    model: str | None = None,
    pid: int | None = None,
    folder: Path | None = None,
    on_phase: Callable[[SoakResult], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SoakResult:
    """Blocks for the whole time; Ctrl-C ends it with what it has. The result is written to `folder` after each phase.
    Raises LabError where the server cannot be reached at the start."""
    target: Target = asyncio.run(probe(url, api_key=api_key, model=model))
    spec = soak_spec(options, target.info.max_model_len)
    result = SoakResult(
        target=target.info,
        asked_s=options.seconds,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=spec,
    )
    content = Content(load_spec(spec), options.seed, secrets.token_hex(4), HttpTokenCounter(target))
    asyncio.run(content.prepare())
    vitals = Vitals(url, api_key=api_key, pid=pid)
    began = time.monotonic()
    try:
        result.checkpoints.append(vitals.checkpoint(0.0, idle=vitals.wait_idle(options.idle_wait_s)))
        while time.monotonic() - began < options.seconds and not result.interrupted and not result.hung:
            load = _load(target, spec, options, content, options.seed + len(result.phases), on_progress)
            begin_s = (load.t0_ns / 1e9) - began
            phase = phase_of(load.records, begin_s, load.span_s)
            result.phases.append(phase)
            result.interrupted = load.partial and not load.problems
            if phase.longest_silence_s > options.watchdog_s:
                result.hung = (
                    f"no token for {phase.longest_silence_s:.1f} s while requests were in flight, "
                    f"{phase.begin_s + phase.silence_at_s:.0f} s after the start"
                )
            idle = vitals.wait_idle(options.idle_wait_s)
            result.checkpoints.append(vitals.checkpoint(time.monotonic() - began, idle=idle))
            result.ran_s = time.monotonic() - began
            _keep(result, vitals, folder, on_phase)
    except LabError as error:
        if not result.checkpoints:
            raise
        result.died = f"{error.message} ({error.seen})"
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        result.ran_s = time.monotonic() - began
        vitals.close()
    _keep(result, vitals, folder, None)
    return result


def _keep(
    result: SoakResult, vitals: Vitals, folder: Path | None, on_phase: Callable[[SoakResult], None] | None
) -> None:
    result.sources = dict(vitals.sources)
    if folder is not None:
        write_soak(folder, result)
    if on_phase is not None:
        on_phase(result)


def _load(
    target: Target,
    spec_table: dict[str, Any],
    options: SoakOptions,
    content: Content,
    seed: int,
    on_progress: Callable[[Progress], None] | None,
) -> LoadResult:
    """One phase. Its texts are new, for the plan's seed draws them."""
    plan = make_plan(load_spec(spec_table), seed=seed)
    limits = LoadOptions(num_processes=0, timeout_s=options.watchdog_s + 5, drain_s=options.watchdog_s + 10)
    return run_load(target, plan, content, limits, on_progress=on_progress)


def phase_of(records: Sequence[RequestRecord], begin_s: float, seconds: float) -> Phase:
    """Counts and the longest silence of one phase. Requests that were never sent are not part of it."""
    sent = [record for record in records if record.t_send_ns != NEVER]
    outcomes: dict[str, int] = {}
    for record in sent:
        outcomes[record.outcome.value] = outcomes.get(record.outcome.value, 0) + 1
    goodbyes = sum(record.outcome in _GOODBYES for record in sent)
    silence, at_s = longest_silence(sent)
    return Phase(
        begin_s=begin_s,
        seconds=seconds,
        num_requests=len(sent),
        outcomes=outcomes,
        longest_silence_s=silence,
        silence_at_s=at_s,
        goodbyes=goodbyes,
        num_unasked=sum(record.outcome is not Outcome.OK and record.outcome not in _GOODBYES for record in sent),
    )


def longest_silence(records: Sequence[RequestRecord]) -> tuple[float, float]:
    """(seconds, when it began): the longest time without a token of any request while some request was in flight."""
    spans = sorted((r.t_send_ns, max(r.t_close_ns, r.t_send_ns)) for r in records if r.t_close_ns != NEVER)
    tokens = sorted(c.t_ns for r in records for c in r.chunks if c.kind in TOKEN_KINDS and c.num_bytes > 0)
    longest, at_ns, index = 0, 0, 0
    merged: list[list[int]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    for begin, end in merged:
        last = begin
        while index < len(tokens) and tokens[index] <= end:
            if tokens[index] - last > longest:
                longest, at_ns = tokens[index] - last, last
            last = max(last, tokens[index])
            index += 1
        if end - last > longest:
            longest, at_ns = end - last, last
    return longest / 1e9, at_ns / 1e9
