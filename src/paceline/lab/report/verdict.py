"""The first screen: what the gates say, the numbers that matter, what to know before trusting them. Words only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from paceline.contracts.artefact import Answer, Caution, Estimate, GateResult, RunInfo, Verdict
from paceline.contracts.metrics import GroupMetrics, RunMetrics
from paceline.contracts.workload import SloClass
from paceline.lab.report.page import Gate, Json, KeyNumber, Warn
from paceline.lab.report.words import count, exact, in_parts, interval_of, number, seconds, share, value_of

_ORDER = (Answer.INVALID, Answer.FAIL, Answer.INCONCLUSIVE, Answer.PASS, Answer.NOT_MEASURED)
_SHARES = ("goodput", "quality", "safety")  # gates whose figures without a unit are shares
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "cold_start": "Cold start"}


def gates_of(gates: Iterable[GateResult]) -> tuple[Gate, ...]:
    """What failed first, what was not measured last."""
    return tuple(gate_of(gate) for gate in sorted(gates, key=lambda gate: _ORDER.index(gate.answer)))


def gate_of(gate: GateResult) -> Gate:
    estimate, limit = gate.estimate, gate.limit
    unit = estimate.unit if estimate is not None else ""
    if estimate is not None and gate.gate == "quality" and unit in ("", "share") and (limit or 0.0) <= 0:
        estimate, limit, unit = _in_points(estimate), None if limit is None else 100 * limit, "points"
    elif not unit and gate.gate in _SHARES:
        unit = "share"
    return Gate(
        answer=gate.answer,
        name=gate_name(gate.gate),
        sentence=gate.sentence,
        subject=gate.subject,
        value="" if estimate is None or estimate.value is None else value_of(estimate, unit),
        interval="" if estimate is None or estimate.value is None else interval_of(estimate, unit),
        limit="" if limit is None else exact(limit, unit),
        strip=_strip(estimate, limit),
    )


def gate_name(gate: str) -> str:
    return _NAMES.get(gate, gate.replace("_", " ").capitalize())


def _in_points(estimate: Estimate) -> Estimate:
    """A difference of shares."""
    value, low, high = (None if v is None else 100 * v for v in (estimate.value, estimate.lo, estimate.hi))
    return msgspec.structs.replace(estimate, value=value, lo=low, hi=high, unit="points")


def _strip(estimate: Estimate | None, limit: float | None) -> Json | None:
    """Places on a short line: the interval, the value, the limit. None without all of value, interval and limit."""
    if estimate is None or limit is None:
        return None
    value, low, high = estimate.value, estimate.lo, estimate.hi
    marks = [mark for mark in (value, low, high, limit) if mark is not None]
    if value is None or not all(map(math.isfinite, marks)):
        return None
    least, most = min(marks), max(marks)
    room = (most - least) * 0.25 or abs(most) * 0.5 or 1.0
    left, right = (max(0.0, least - room) if least >= 0 else least - room), most + room

    def at(mark: float | None) -> float | None:
        return None if mark is None else (mark - left) / (right - left)

    return {"lo": at(low), "value": at(value), "hi": at(high), "limit": at(limit)}


def what_would_change_it(gates: Sequence[GateResult]) -> str:
    """Plain arithmetic of the gates: how far each that did not pass is from its limit."""
    told = []
    for gate in gates:
        estimate = gate.estimate
        if gate.answer is Answer.INCONCLUSIVE:
            told.append(f"more samples would narrow {gate_name(gate.gate)} {gate.subject}".rstrip())
        elif gate.answer is Answer.FAIL and estimate is not None and estimate.value and gate.limit is not None:
            off = abs(gate.limit / estimate.value - 1)
            if 0 < off < 10:
                name = f"{gate_name(gate.gate)} {gate.subject}".rstrip()
                told.append(f"{name} would have to move by {number(100 * off, 2)} %")
    return ("; ".join(told) + ".") if told else ""


def cautions_of(cautions: Iterable[Caution]) -> tuple[Warn, ...]:
    """Those that make numbers void come first."""
    ordered = sorted(cautions, key=lambda caution: not caution.invalidates)
    return tuple(Warn(caution.code, caution.sentence, caution.invalidates) for caution in ordered)


def answer_of(info: RunInfo, metrics: RunMetrics, verdict: Verdict | None) -> tuple[Answer | None, str]:
    """What the first line says. Without gates there is no answer, unless the run's numbers are void."""
    if verdict is not None:
        return verdict.answer, verdict.sentence
    void = [caution.sentence for caution in metrics.cautions if caution.invalidates]
    if void:
        return Answer.INVALID, f"Nothing can be said about the server: {void[0][0].lower()}{void[0][1:]}"
    return None, run_sentence(info, metrics)


def run_sentence(info: RunInfo, metrics: RunMetrics) -> str:
    """What a run without a verdict says, in a sentence."""
    whole = metrics.whole
    rate = number(metrics.offered_rps)
    if whole.num_requests == 0:
        return "No request was planned in the measured window."
    asked = f"in a closed loop ({rate} req/s came of it)" if metrics.closed_loop else f"at {rate} req/s offered"
    if info.slo and any(_terms(terms) for terms in info.slo) and whole.attainment.value is not None:
        bounds = interval_of(whole.attainment, "share")
        return (
            f"{info.target.model} answered {share(whole.attainment.value)} {bounds} of the requests within the SLO "
            f"{asked}: goodput {value_of(whole.goodput_rps, 'req/s')}."
        )
    return f"{info.target.model} ended {number(whole.request_rps)} req/s well {asked}; no SLO was asked for."


def key_numbers(info: RunInfo, metrics: RunMetrics) -> tuple[KeyNumber, ...]:
    """At most eight."""
    whole = metrics.whole
    attained = whole.attainment
    shares = sorted({terms.share for terms in info.slo})
    asked = f"SLO asks for {share(shares[0])}" if shares else "no SLO"
    asked += f" to {share(shares[-1])}" if len(shares) > 1 else ""
    # each class must reach its own share, which the table of classes shows; less than any asks for is too little
    late = bool(shares) and attained.value is not None and attained.value < shares[0]
    offered = f"of {number(metrics.offered_rps)} offered" if metrics.offered_rps else ""
    found = [
        _number("Goodput", whole.goodput_rps, "req/s", offered),
        KeyNumber(
            "Attainment", *in_parts(value_of(attained, "share")), interval_of(attained, "share"), asked,
            "bad" if late else "",
        ),
        _latency("TTFT", whole, "ttft", _limit(info.slo, "ttft_s")),
        _latency("TPOT", whole, "tpot", _limit(info.slo, "tpot_s")),
        _latency("End to end", whole, "e2e", _limit(info.slo, "e2e_s")),
        _number("Output", metrics.output_tokens_per_s, "tokens/s", _in_flight(metrics)),
    ]  # fmt: skip
    if whole.prefix_hit.value is not None:
        planned = whole.prefix_hit_planned
        note = f"of prompt tokens; {share(planned)} are shared by plan" if planned is not None else "of prompt tokens"
        found.append(
            KeyNumber(
                "Prefix hits",
                *in_parts(value_of(whole.prefix_hit, "share")),
                interval_of(whole.prefix_hit, "share"),
                note,
            )
        )
    ended = whole.outcomes.get("ok", 0)
    failed = whole.num_requests - ended - whole.outcomes.get("client_cancel", 0)
    ends = f"{count(ended)} ended well, {count(failed)} failed"
    asked_for = {name for terms in info.slo for name in terms.validators}
    ends += "".join(
        f"; {name.replace('_', ' ')} valid in {count(passed)} of {count(judged)}"
        for name, (passed, judged) in whole.valid.items()
        if name in asked_for
    )
    if whole.num_cut and asked_for:
        ends += f"; {count(whole.num_cut)} more cut at their limit of tokens"
    found.append(KeyNumber("Requests", count(whole.num_requests), "", ends, f"in {number(metrics.window.seconds)} s"))
    return tuple(found)


def slo_words(classes: Sequence[SloClass]) -> str:
    """`interactive: TTFT 400 ms, TPOT 60 ms, for 95 %`."""
    told = []
    for terms in classes:
        parts = [f"{name} {exact(limit)}" for name, limit in _terms(terms)]
        parts += [word.replace("_", " ") for word in terms.validators]
        told.append(f"{terms.name}: {', '.join(parts) if parts else 'a good end'}, for {share(terms.share)}")
    return "; ".join(told)


def _terms(terms: SloClass) -> list[tuple[str, float]]:
    named = (("TTFT", terms.ttft_s), ("TTFA", terms.ttfa_s), ("TPOT", terms.tpot_s), ("longest gap", terms.icl_max_s),
             ("E2E", terms.e2e_s))  # fmt: skip
    return [(name, limit) for name, limit in named if limit is not None]


def _limit(classes: Sequence[SloClass], term: str) -> str:
    limits = sorted({limit for terms in classes if (limit := getattr(terms, term)) is not None})
    if not limits:
        return ""
    return f"SLO {exact(limits[0])}" if len(limits) == 1 else f"SLO {exact(limits[0])} to {exact(limits[-1])}"


def _number(label: str, estimate: Estimate, unit: str, note: str = "") -> KeyNumber:
    if estimate.value is None:
        return KeyNumber(label, "–", "", estimate.reason, note, "muted")
    return KeyNumber(label, number(estimate.value), unit, interval_of(estimate, ""), note)


def _latency(label: str, group: GroupMetrics, name: str, note: str) -> KeyNumber:
    """p95 where there are enough samples, else the highest percentile that there is."""
    latency = group.latency.get(name)
    if latency is None:
        return KeyNumber(f"{label} p95", "–", "", "not measured", note, "muted")
    for mark in ("p95", "p90", "p50"):
        estimate: Estimate = getattr(latency, mark)
        if estimate.value is not None:
            return KeyNumber(f"{label} {mark}", *in_parts(seconds(estimate.value)), interval_of(estimate, "s"), note)
    return KeyNumber(f"{label} p95", "–", "", latency.p95.reason or "not measured", note, "muted")


def _in_flight(metrics: RunMetrics) -> str:
    return "" if metrics.in_flight_mean is None else f"{number(metrics.in_flight_mean)} requests in flight on average"
