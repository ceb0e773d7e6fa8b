"""PL104: ranks that divide each matrix wait for each other longer than they compute less."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Evidence, Finding, Fix, Severity
from paceline.planner.lint.facts import Facts
from paceline.planner.lint.fleet import LayoutFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import fact, flag

_MORE = 1.1  # requests that another layout carries, from which it is worth a change


def check(facts: Facts) -> Iterator[Finding]:
    assert facts.fleet is not None, "needs()"
    now, *others = facts.fleet.layouts
    lost = now.talk_ms > now.saved_ms
    if not lost and not now.hops:
        return
    target_ms = min((1e3 * terms.tpot_s for terms in facts.slo if terms.tpot_s is not None), default=None)
    better = _best(now, others, target_ms)
    if better is None and not lost:
        return  # a slow link, and still the best that these devices do
    late = target_ms is not None and better is not None and now.step_ms > target_ms >= better.step_ms
    sentence = (
        f"{now.name} over {now.link}: all-reduces take {now.talk_ms:.3g} ms of the {now.request_ms:.3g} ms that a "
        f"request costs, and dividing the matrices saves {now.saved_ms:.3g} ms of computing"
    )
    if better is None:
        fix = Fix(words="devices on a fast link, or fewer ranks: smaller weights (a more quantised file) need fewer")
        told = "; no other layout of these devices fits and is better"
    else:
        more = better.rps / now.rps
        options = " ".join(f"{flag(name)} {value}" for name, value in better.options.items())
        fix = Fix(
            words=f"{better.name}: {options}",
            fleet=dict(better.options),
            gain=f"{now.rps:.3g} -> {better.rps:.3g} requests/s of the same devices, decode step "
            f"{now.step_ms:.3g} -> {better.step_ms:.3g} ms",
        )
        told = f"; {better.name} on the same devices carries {more:.2g} times as many requests"
    severity = Severity.ERROR if lost or late else Severity.WARNING
    evidence = (*_of(now), *(() if better is None else _of(better)))
    yield RULE.finding(severity, f"{sentence}{told}.", fix, evidence, subject=now.name)


def needs(facts: Facts) -> str:
    layouts = () if facts.fleet is None else facts.fleet.layouts
    if not layouts:
        return "an engine over several devices, and what its model and devices are"
    return "" if layouts[0].tp > 1 else "matrices that are divided (--tensor-parallel-size)"


def _best(now: LayoutFacts, others: list[LayoutFacts], target_ms: float | None) -> LayoutFacts | None:
    """The other layout that carries most, if that is clearly more; it may not miss a TPOT target that is met now."""
    met_now = target_ms is None or now.step_ms <= target_ms
    fit = [
        each
        for each in others
        if each.fits and each.rps > _MORE * now.rps and (target_ms is None or not met_now or each.step_ms <= target_ms)
    ]
    return max(fit, key=lambda each: each.rps, default=None)


def _of(one: LayoutFacts) -> tuple[Evidence, ...]:
    origin = f"predicted ({one.tier})"
    return (
        fact(f"{one.name}: rows of a replica", one.num_rows, "", "of the load"),
        fact(f"{one.name}: decode step", one.step_ms, "ms", origin),
        fact(f"{one.name}: all-reduces of that step", one.step_talk_ms, "ms", origin),
        fact(f"{one.name}: a request, prompt and decode steps", one.request_ms, "ms", origin),
        fact(f"{one.name}: all-reduces of that request", one.talk_ms, "ms", origin),
        fact(f"{one.name}: computing saved by division", one.saved_ms, "ms", origin),
        fact(f"{one.name}: requests carried", one.rps, "req/s", origin),
    )


RULE = Rule(
    code="PL104",
    title="tensor parallelism over slow links",
    what="Each layer waits for two all-reduces. Over PCIe or a network they outlast the products they split: every "
    "device waits for the others, and the same devices as replicas would answer more requests.",
    evidence="All-reduce time against the compute that it saves, by the link's latency and rate, of a decode step and "
    "of a request. From a configuration: full rows and the workload's lengths. From a simulated run: the rows that "
    "decoded together and the lengths in the raw records.",
    fix="Replicas (data parallelism), or ranks that stay within one fast link.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
