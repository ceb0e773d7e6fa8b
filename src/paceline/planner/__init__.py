"""Decides before anything runs: how a model should lie over devices, what that carries, and why not otherwise.

    make_plan(question)    every layout judged, the best chosen, the walk with its inequalities, the memory ledger
    Question               a model, devices, requests, targets, a price
    CARDS, DEVICES         models and devices that can be planned for without having them
    Verify                 a second opinion on the best candidates, of whoever has a simulator; `verify` ranks by it
    config_text(...)       the chosen configuration as a file for `paceline serve --config`
    lint/                  rules about configurations and runs, a package of its own

Step times come from `cost`, memory from the ledger that engines start with; nothing is measured here. Pure: no clock,
no file, no torch. Imports contracts, config, cost; never the simulator, which `assemble.plan_verify` brings.
"""

from __future__ import annotations

from paceline.planner.cards import CARDS, ModelCard
from paceline.planner.devices import DEVICES, DeviceCard
from paceline.planner.layout import Fleet, Layout
from paceline.planner.plan import Plan, make_plan
from paceline.planner.question import Kept, Question, Room
from paceline.planner.search import Candidate, Verify
from paceline.planner.serve_file import config_text, why_not_served
from paceline.planner.traffic import Traffic

__all__ = [
    "CARDS",
    "DEVICES",
    "Candidate",
    "DeviceCard",
    "Fleet",
    "Kept",
    "Layout",
    "ModelCard",
    "Plan",
    "Question",
    "Room",
    "Traffic",
    "Verify",
    "config_text",
    "make_plan",
    "why_not_served",
]
