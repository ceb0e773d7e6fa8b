"""PL208: texts and lengths that nobody would send, where what is said decides how fast it goes."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Evidence, Finding, Fix, Severity
from paceline.planner.lint.facts import Facts, RunFacts
from paceline.planner.lint.fleet import FleetFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, listed

INVENTED = ("synthetic", "token_ids")


def check(facts: Facts) -> Iterator[Finding]:
    fleet, load = facts.fleet, facts.load
    assert fleet is not None, "needs()"
    assert load is not None, "needs()"
    invented = [s for s in load.texts if s.content in INVENTED]
    forced = [s for s in load.texts if s.forced]
    if not invented and not forced:
        return
    said: list[str] = []
    fix: dict[str, str | bool] = {}
    if invented:
        kinds = ", ".join(dict.fromkeys(s.content for s in invented))
        said.append(f"{listed([s.name for s in invented])} send{'s' if len(invented) == 1 else ''} {kinds} text")
        fix["content"] = "natural"
        if any(s.content == "token_ids" for s in invented):
            fix["endpoint"] = "completions"
    if forced:
        names = listed([s.name for s in forced])
        said.append(f"answers of {names} are made to have the planned length, past the end that the model would give")
        fix["exact_output"] = False
    evidence = [
        fact("streams", ", ".join(f"{s.name}: {s.content}{', forced' * s.forced}" for s in load.texts), "", CONFIGURED),
        *_features(fleet),
        *(() if facts.run is None else _ends(facts.run)),
    ]
    words = ", ".join(f"{key} = {_toml(value)}" for key, value in fix.items())
    sentence = f"{_on(fleet)}, and {'; '.join(said)}: {_why(fleet)}."
    told = Fix(words=f"{words} in each [[stream]]", workload=fix, gain="acceptance and balance as real text has them")
    yield RULE.finding(Severity.WARNING, sentence, told, tuple(evidence))


def needs(facts: Facts) -> str:
    fleet = facts.fleet
    if fleet is None or not (fleet.speculates or fleet.num_experts):
        return "speculation (--speculative) or a mixture of experts"
    if facts.load is None:
        return "a workload (--workload)"
    return "" if facts.load.texts else "a workload that says what texts it sends"


def _on(fleet: FleetFacts) -> str:
    parts = ["speculation is on"] if fleet.speculates else []
    if fleet.num_experts:
        parts.append(f"the model routes tokens over {fleet.num_experts} experts")
    return " and ".join(parts).capitalize()


def _why(fleet: FleetFacts) -> str:
    why = ["drafts are accepted as often as text is predictable"] if fleet.speculates else []
    if fleet.num_experts:
        why.append("experts are as busy as text sends tokens to them")
    return ", and ".join(why) + ", so neither speed nor balance is that of the service"


def _features(fleet: FleetFacts) -> Iterator[Evidence]:
    if fleet.speculates:
        yield fact("drafts", len(fleet.acceptance) or "on", "", CONFIGURED)
    if fleet.num_experts:
        yield fact("experts", fleet.num_experts, "", CONFIGURED)


def _ends(run: RunFacts) -> Iterator[Evidence]:
    """Answers that went on to exactly what was asked."""
    known = [r for r in run.requests if r.ok and r.at_length is not None]
    if known:
        yield fact(
            "answers that end at the planned length", sum(bool(r.at_length) for r in known) / len(known), "share"
        )


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


RULE = Rule(
    code="PL208",
    title="invented text for speculation or experts",
    what="Random tokens are neither as predictable as real text nor spread over experts as it is; and an answer that "
    "is kept going past its end repeats itself, which drafts guess well. Speed measured so is that of no service.",
    evidence="Synthetic content, token ids or forced lengths (ignore_eos) in the workload, with speculation or a "
    "mixture of experts on. From a run: its workload as stored, and how many answers ended at the planned length.",
    fix="Natural text, lengths as they come.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
