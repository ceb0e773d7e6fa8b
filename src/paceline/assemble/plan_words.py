"""A plan in words and rows: what the terminal's tables and the page both show."""

from __future__ import annotations

from paceline.cost.memory import format_bytes
from paceline.planner import Candidate, Plan, Question
from paceline.planner.ledger import kv_bytes_per_token

LAYOUT_COLUMNS = ("layout", "chunk", "rows", "good/s", "1 lost", "TTFT p95", "TPOT", "cost/M")
LAYOUT_LEGEND = (
    "chunk: prompt tokens of a step; rows: running on average / that fit, of one replica; good/s: requests within all "
    "targets per second; 1 lost: the same after one device fails; cost/M: of a million good output tokens"
)
SIMULATED_COLUMNS = ("layout", "mode", "offered/s", "in time", "TTFT p95", "TPOT", "preempted", "good/s")


def simulated_legend(plan: Plan) -> str:
    """What the rows of `simulated_rows` are."""
    seen = next(c.simulated for c in plan.search.candidates if c.simulated is not None)
    least = "at the rate asked for" if plan.question.traffic.rate_rps is not None else "at 95 % of capacity"
    return (
        f"predicted / simulated with the engine's own scheduler, {least}: {seen.first.num_requests} requests of one "
        f"replica with its share of the arrivals, in a steady state, seed {seen.seed}; a lower load follows where "
        f"targets are missed; mode: of scheduling, fixed where that keeps clearly more in time; good/s: of all replicas"
    )


def sentence(plan: Plan) -> str:
    """The answer."""
    chosen, question = plan.chosen, plan.question
    if chosen is None:
        return f"No layout of {fleet_words(question)} serves {question.spec.name} within the targets."
    operating = chosen.operating
    assert operating is not None
    rate = question.traffic.rate_rps
    load = "at most" if rate is None else f"of {rate:g} asked for"
    return (
        f"{chosen.layout} of {fleet_words(question)}: {chosen.goodput_rps:.3g} good requests/s {load}, TTFT p95 "
        f"{seconds(operating.ttft_p95_s)}, TPOT {operating.step_ms:.3g} ms.{_simulated_words(chosen)}"
    )


def _simulated_words(chosen: Candidate) -> str:
    if chosen.simulated is None:
        return ""
    load = chosen.simulated.carried
    return (
        f" Simulated at {load.rate_rps:.3g} requests/s: {load.attainment:.1%} in time, TTFT p95 "
        f"{seconds(load.ttft_p95_s)}, TPOT {1e3 * load.tpot_s:.3g} ms."
    )


def fleet_words(question: Question) -> str:
    fleet = question.fleet
    nodes = f" on {fleet.num_nodes} nodes" if fleet.num_nodes > 1 else ""
    return f"{fleet.num_devices} x {question.card.spec.name}{nodes}"


def seconds(value: float) -> str:
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def facts(plan: Plan) -> list[tuple[str, str]]:
    """What was asked and taken, by name."""
    q, traffic, card = plan.question, plan.question.traffic, plan.question.card
    targets = [("TTFT", q.slo.ttft_s), ("TPOT", q.slo.tpot_s)]
    kv = kv_bytes_per_token(q.spec, q.kept.kv)
    found = [
        ("model", f"{q.spec.name}: {q.spec.num_parameters / 1e9:.4g} G weights, {weights_words(q)}"),
        ("KV", f"{kv:,} bytes for each further token{_state_words(q)}"),
        (
            "device",
            f"{card.spec.name}: {card.rate(q.kept.weights) / 1e3:.4g} TFLOP/s, {card.spec.memory_gbps:.4g} GB/s, "
            f"{format_bytes(q.memory.device_bytes)} ({card.source})",
        ),
        (
            "requests",
            f"input mean {traffic.mean_input:.0f}, longest {traffic.input_tokens.max():.0f}; output mean "
            f"{traffic.mean_output:.0f}, longest {traffic.output_tokens.max():.0f}; "
            f"{traffic.cached_share:.0%} of prompts cached",
        ),
        (
            "targets",
            ", ".join(f"{name} {seconds(value)}" for name, value in targets if value is not None)
            + f" for {q.slo.share:.0%} of requests",
        ),
    ]
    if plan.chosen is not None and plan.chosen.high_rps:
        low, high = plan.chosen.low_rps, plan.chosen.high_rps
        found.append(
            (
                "certainty",
                f"{plan.chosen.tier}: capacity {low:.3g} to {high:.3g} good requests/s if steps are as far off as "
                f"the cost model allows",
            )
        )
    return found


def weights_words(question: Question) -> str:
    kept = question.kept
    if kept.stored_bytes is not None:
        return f"{format_bytes(kept.stored_bytes)} as the engine keeps them"
    return kept.weights


def _state_words(question: Question) -> str:
    state = question.spec.state_bytes
    return f", and {format_bytes(state)} of state for each sequence" if state else ""


def layout_rows(plan: Plan) -> list[tuple[str, ...]]:
    """One row for each layout that fits, best first."""
    return [_layout_row(c) for c in plan.search.candidates if c.fits]


def simulated_rows(plan: Plan) -> list[tuple[str, ...]]:
    """One row for each load of each layout that was simulated, the layouts in their final order."""
    return [
        (
            str(c.layout),
            load.mode,
            f"{load.rate_rps:.3g}",
            f"{load.expected.attainment:.1%} / {load.attainment:.1%}",
            f"{seconds(load.expected.ttft_p95_s)} / {seconds(load.ttft_p95_s)}",
            f"{load.expected.step_ms:.3g} / {1e3 * load.tpot_s:.3g} ms",
            str(load.num_preemptions),
            f"{load.rate_rps * load.expected.attainment:.3g} / {load.goodput_rps:.3g}",
        )
        for c in plan.search.candidates
        if c.simulated is not None
        for load in c.simulated.loads
    ]


def rejected_rows(plan: Plan) -> list[tuple[str, str]]:
    """Layouts that do not, and why."""
    return [(str(c.layout), c.rejected) for c in plan.search.candidates if not c.fits]


def _layout_row(c: Candidate) -> tuple[str, ...]:
    assert c.operating is not None
    assert c.memory is not None
    return (
        str(c.layout),
        str(c.chunk),
        f"{c.operating.rows:.0f}/{c.memory.seats}",
        f"{c.goodput_rps:.3g}",
        f"{c.goodput_after_loss_rps:.3g}",
        seconds(c.operating.ttft_p95_s),
        f"{c.operating.step_ms:.3g} ms",
        "" if c.cost_per_million is None else f"{c.cost_per_million:.3g}",
    )


def step_rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    """The walk: question, its numbers, whether it was taken, why."""
    return [(s.name, s.inequality, "taken" if s.holds else "not taken", s.why) for s in plan.steps]


def ledger_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """The fullest rank's memory: part, bytes, how."""
    if plan.memory is None:
        return []
    return [(name, predicted, how) for name, predicted, _, how in plan.memory.plan.ledger.render()]


def draft_rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Speculation: rows, best K, its gain, all gains."""
    return [
        (
            str(d.num_rows),
            str(d.num_drafts) if d.num_drafts else "none: it does not pay",
            f"{d.speedup:.3g} x ({d.basis})",
            ", ".join(f"{k}: {gain:.2f}" for k, gain in enumerate(d.speedups, start=1)),
        )
        for d in plan.drafts
    ]
