"""The lint: mistakes that cost goodput, and measurements that say less than they seem to, each with evidence and a fix.

    lint(facts)       every rule that the facts can decide -> `contracts.lint.LintResult`
    RULES, rule_of    the table
    Facts, ...        what rules are decided from: plain values, from a configuration or from a run's raw records
    Prices            the cost model, asked in the words of the rules

A rule is a pure function from facts to findings; a number in a finding comes from the cost model (with its tier), from
the raw records (recomputed) or from the configuration, and says which. What cannot be decided is skipped by name.
May import contracts, errors, cost, and the planner's tables and formulas. Never reads a file, never measures, never
changes a configuration.
"""

from __future__ import annotations

from paceline.planner.lint.client import again
from paceline.planner.lint.facts import (
    Asked,
    Change,
    ClientFacts,
    EngineFacts,
    Facts,
    LoadFacts,
    PairFacts,
    RatioFact,
    RunFacts,
    Sample,
    StartFacts,
    Timed,
    TraceFacts,
    WeightFacts,
)
from paceline.planner.lint.fleet import DeviceFacts, FleetFacts, LayoutFacts, StreamFacts, TierFacts
from paceline.planner.lint.prices import Prices
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.rules import RULES, lint, rule_of

__all__ = [
    "RULES",
    "Asked",
    "Change",
    "ClientFacts",
    "DeviceFacts",
    "EngineFacts",
    "Facts",
    "FleetFacts",
    "LayoutFacts",
    "LoadFacts",
    "PairFacts",
    "Prices",
    "RatioFact",
    "Rule",
    "RunFacts",
    "Sample",
    "StartFacts",
    "StreamFacts",
    "TierFacts",
    "Timed",
    "TraceFacts",
    "WeightFacts",
    "again",
    "lint",
    "rule_of",
]
