"""PL201: the prefix cache already knows the questions, and the run measures what it remembers."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import Facts, LoadFacts, PairFacts, RunFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, share

_MOST = 0.5  # of what the plan does not explain: a chat template alone is a hit as well
_FIX = Fix(
    words='[cache] protocol = ["salt", "flush"] in the workload',
    workload={"cache": {"protocol": ["salt", "flush"]}},
    gain="each run starts from the same state of the cache",
)


def check(facts: Facts) -> Iterator[Finding]:
    if facts.run is None:
        assert facts.load is not None, "needs()"
        yield from _planned(facts.load)
        return
    found = [finding for pair in facts.pairs for finding in _asked_before(facts.run, pair)]
    yield from found or _remembered(facts.run)


def needs(facts: Facts) -> str:
    if facts.run is not None:
        return ""
    if facts.load is None:
        return "a workload (--workload)"
    if facts.engine is not None and facts.engine.prefix_caching is False:
        return "a prefix cache: it is off"
    return ""


def _planned(load: LoadFacts) -> Iterator[Finding]:
    if "salt" in load.protocol or "flush" in load.protocol:
        return
    tokens = sum(r.num_input for r in load.requests)
    sentence = (
        f"Nothing makes two runs of {load.name} differ: the texts come from seed {load.seed} without a salt, and the "
        f"cache is not flushed. A second run finds up to all of its {tokens:,} prompt tokens in the prefix cache."
    )
    evidence = (
        fact("cache protocol", ", ".join(load.protocol) or "none", "", CONFIGURED),
        fact("seed", load.seed, "", CONFIGURED),
        fact("prompt tokens", tokens, "tokens", CONFIGURED),
    )
    yield RULE.finding(Severity.WARNING, sentence, _FIX, evidence)


def _asked_before(run: RunFacts, pair: PairFacts) -> Iterator[Finding]:
    if not pair.num_equal_prompts or run.info.cache.get("flushed") is True:
        return
    hit = run.metrics.whole.prefix_hit.value
    came = "" if hit is None else f"; {share(hit)} of its prompt tokens came from the cache"
    sentence = (
        f"{pair.num_equal_prompts} prompts of this run were sent in {pair.before} already, text for text, and the "
        f"cache was not flushed in between{came}."
    )
    evidence = [
        fact("prompts asked before", pair.num_equal_prompts),
        fact("prompts", len(run.requests)),
        fact("cache flushed", str(run.info.cache.get("flushed", "not asked for")).lower()),
    ]
    if hit is not None:
        evidence.append(fact("prefix hits", hit, "share"))
    yield RULE.finding(Severity.ERROR, sentence, _FIX, tuple(evidence), subject=pair.before)


def _remembered(run: RunFacts) -> Iterator[Finding]:
    """Without an earlier run at hand: more hits than the plan explains."""
    whole = run.metrics.whole
    hit, planned = whole.prefix_hit.value, whole.prefix_hit_planned
    if run.info.salt or run.info.cache.get("flushed") is True or hit is None or planned is None:
        return
    if hit <= planned + _MOST * (1 - planned):
        return
    sentence = (
        f"{share(hit)} of the prompt tokens came from the cache and the plan explains {share(planned)}: without a salt "
        "or a flush, the rest was asked before this run."
    )
    evidence = (fact("prefix hits", hit, "share"), fact("planned", planned, "share", CONFIGURED))
    yield RULE.finding(Severity.ERROR, sentence, _FIX, evidence)


RULE = Rule(
    code="PL201",
    title="the cache knew the questions",
    what="A fixed seed asks the same questions again. A server that was neither restarted nor flushed answers them "
    "from its prefix cache, and the second run is faster for no reason that a user would meet.",
    evidence="From a workload: a cache protocol without salt and flush. From a run: prompts whose digests an earlier "
    "run (--against) has too, or more hits than the plan explains.",
    fix='[cache] protocol = ["salt", "flush"], with "prime" and "verify" where shared prefixes are meant to hit.',
    sources=("config", "run", "pair"),
    check=check,
    needs=needs,
)
