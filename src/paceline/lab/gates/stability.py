"""Stability gate: nothing died, nothing hung, no request failed, nothing leaks, and KV blocks come back. Pure.

Leaks are judged at idle checkpoints by the Theil-Sen slope with its interval (see `stats.trend.leak`); the first fifth
of the checkpoints, at least one, is left out, for caches and allocators fill up in it.
"""

from __future__ import annotations

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.lab.gates.evidence import not_measured
from paceline.lab.gates.soak_result import Checkpoint, SoakResult
from paceline.lab.gates.spec import StabilityGate
from paceline.lab.stats.proportion import share_estimate
from paceline.lab.stats.trend import leak

MIN_CHECKPOINTS = 8  # that count: fewer show no trend
_MIB = 1 << 20


def stability_gate(soak: SoakResult | None, gate: StabilityGate) -> list[GateResult]:
    if soak is None:
        return [not_measured("stability", "no soak was run")]
    return [
        _alive(soak, gate),
        _rest(soak),
        _watchdog(soak, gate),
        _errors(soak, gate),
        _leak(soak, "rss", "rss_bytes", gate.max_rss_growth_mib_per_day, _MIB, "MiB"),
        _leak(soak, "open files", "num_fds", gate.max_fd_growth_per_day, 1, "files"),
        _blocks(soak, gate),
    ]


def _result(subject: str, answer: Answer, sentence: str, **more: object) -> GateResult:
    return GateResult(gate="stability", answer=answer, subject=subject, sentence=sentence, **more)  # type: ignore[arg-type]


def _alive(soak: SoakResult, gate: StabilityGate) -> GateResult:
    hours, points = soak.ran_s / 3600, soak.checkpoints
    if soak.died:
        return _result("alive", Answer.FAIL, f"the server died after {hours:.2f} h: {soak.died}")
    starts = {point.started_at for point in points if point.started_at is not None}
    restarts = [point.num_restarts for point in points if point.num_restarts is not None]
    num_restarts = max(len(starts) - 1, 0) + (max(restarts) - restarts[0] if restarts else 0)
    if num_restarts:
        return _result("alive", Answer.FAIL, f"the server or its engine started again {num_restarts:g} times")
    if not points:
        return _result("alive", Answer.INCONCLUSIVE, f"no checkpoint in {hours:.2f} h")
    if hours < gate.min_hours:
        return _result("alive", Answer.INCONCLUSIVE, f"{hours:.2f} h of soak, {gate.min_hours:g} h are asked")
    told = "" if starts or restarts else " (restarts could not be seen)"
    return _result("alive", Answer.PASS, f"no restart in {hours:.2f} h and {len(points)} checkpoints{told}")


def _rest(soak: SoakResult) -> GateResult:
    """Requests whose clients are gone must end: what still runs at a checkpoint is stuck, or somebody else's."""
    points = soak.checkpoints[1:]  # the first is before any load
    busy = [point for point in points if not point.idle]
    if not points:
        return _result("rest", Answer.NOT_MEASURED, "not measured: no load was sent")
    words = f"requests ran or waited on after the load at {len(busy)} of {len(points)} checkpoints"
    if len(busy) == len(points):
        return _result("rest", Answer.FAIL, f"{words}: stuck, or somebody else uses the server")
    if points[-1] in busy:
        return _result("rest", Answer.INCONCLUSIVE, f"{words}, the last among them")
    return _result("rest", Answer.PASS, words)


def _watchdog(soak: SoakResult, gate: StabilityGate) -> GateResult:
    if soak.hung:
        return _result("no hang", Answer.FAIL, soak.hung, limit=gate.max_no_token_s)
    if not soak.phases:
        return _result("no hang", Answer.NOT_MEASURED, "not measured: no load was sent")
    worst = max(soak.phases, key=lambda phase: phase.longest_silence_s)
    silence = worst.longest_silence_s
    answer = Answer.FAIL if silence > gate.max_no_token_s else Answer.PASS
    sentence = f"longest time without any token while requests were in flight: {silence:.2f} s"
    if answer is Answer.FAIL:
        sentence += f", {worst.begin_s + worst.silence_at_s:.0f} s after the start"
    return _result("no hang", answer, f"{sentence}; at most {gate.max_no_token_s:g} s", limit=gate.max_no_token_s)


def _errors(soak: SoakResult, gate: StabilityGate) -> GateResult:
    total = sum(phase.num_requests - phase.goodbyes for phase in soak.phases)
    bad = sum(phase.num_unasked for phase in soak.phases)
    goodbyes = sum(phase.goodbyes for phase in soak.phases)
    if not total:
        return _result("errors", Answer.NOT_MEASURED, "not measured: no request was left to its end")
    answer = Answer.PASS if bad / total <= gate.max_error_share else Answer.FAIL
    outcomes: dict[str, int] = {}
    for phase in soak.phases:
        for name, count in phase.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    return _result(
        "errors",
        answer,
        f"{bad} of {total} requests ended ill, {goodbyes} more were left by the client on purpose",
        limit=gate.max_error_share,
        estimate=share_estimate(bad, total),
        evidence={"outcomes": outcomes},
    )


def settled(points: list[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that count: idle ones, without the first fifth."""
    idle = [point for point in points if point.idle]
    return idle[max(1, len(idle) // 5) :] if idle else []


def _leak(soak: SoakResult, subject: str, field: str, per_day: float, unit: int, name: str) -> GateResult:
    known = [(p.t_s, getattr(p, field)) for p in settled(soak.checkpoints) if getattr(p, field) is not None]
    if not known:
        return not_measured("stability", f"{subject} could not be read (no /metrics with it, no --pid)", subject)
    if len(known) < MIN_CHECKPOINTS:
        words = f"{len(known)} idle checkpoints after the first ones, {MIN_CHECKPOINTS} are needed for {subject}"
        return _result(subject, Answer.INCONCLUSIVE, words)
    times, values = [t for t, _ in known], [value / unit for _, value in known]
    found = leak(times, values, max_per_day=per_day)
    estimate = Estimate(
        value=found.per_day,
        lo=found.lo_per_s * 86_400,
        hi=found.hi_per_s * 86_400,
        n=len(known),
        method="Theil-Sen 95 %",
        unit=f"{name} per day",
    )
    grown = values[-1] - values[0]
    sentence = (
        f"{subject}: {values[0]:.5g} to {values[-1]:.5g} {name} ({grown:+.3g}) in "
        f"{(times[-1] - times[0]) / 3600:.2f} h, slope {found.per_day:.3g} [{estimate.lo:.3g}, {estimate.hi:.3g}] "
        f"{name} a day, at most {per_day:g}"
    )
    answer = Answer.FAIL if found.leaks else Answer.PASS
    if answer is Answer.PASS and found.per_day > per_day:  # over the limit, and not told from noise
        answer = Answer.INCONCLUSIVE
        sentence += "; the slope cannot be told from 0 yet"
    return _result(subject, answer, sentence, limit=per_day, estimate=estimate, evidence={"p_trend": found.p_trend})


def _blocks(soak: SoakResult, gate: StabilityGate) -> GateResult:
    subject = "KV blocks"
    points = settled(soak.checkpoints)
    held = [p.num_held_blocks for p in points if p.num_held_blocks is not None]
    if held:
        if held[-1] > 0 and held[-1] >= max(held[0], 1) and min(held) > 0:
            return _result(subject, Answer.FAIL, f"{held[-1]:g} blocks are held at rest and do not come back")
        if len(held) >= MIN_CHECKPOINTS and any(held):
            return _leak(soak, subject, "num_held_blocks", gate.max_held_block_growth_per_day, 1, "blocks")
        if held[-1] > 0:
            return _result(subject, Answer.INCONCLUSIVE, f"{held[-1]:g} blocks are held at the last checkpoint")
        return _result(subject, Answer.PASS, f"no block is held at rest, at {len(held)} checkpoints")
    used = [p.kv_usage for p in points if p.kv_usage is not None]
    if not used:
        return not_measured("stability", "the server does not tell of its KV blocks", subject)
    if max(used[-1], 0) > used[0] + 0.001 and min(used) > 0:
        return _result(subject, Answer.FAIL, f"{100 * used[-1]:.2f} % of the KV cache is held at rest")
    return _result(subject, Answer.PASS, f"{100 * used[-1]:.2f} % of the KV cache is held at rest")
