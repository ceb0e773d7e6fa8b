"""What work costs: milliseconds for a step or a transfer, bytes for memory. Decides nothing; scheduler, planner and
simulator ask it.

    features     a step's size as columns                 prior        what a step should take, from counts and rates
    model        prices that follow what steps take       fit, batch   how they follow; how a calibration is fitted
    estimate     a number, its interval, how it is known  calibration  what was timed on one machine, as a file's value
    cells        sizes of step that a calibration times   transfer     links and tiers
    ttft         when a first token would come            memory       the memory ledger

`LinearStepCost` has prices that are given. May import contracts, numpy and scipy (in `batch`); never torch, never the
engine. No clock and no files: times and bytes are passed in.
"""

from __future__ import annotations

from paceline.contracts.ports import EngineSnapshot, joined, prefill_shape
from paceline.cost.calibration import (
    Calibration,
    CalibrationKey,
    TimedCell,
    decode_calibration,
    encode_calibration,
    restore,
)
from paceline.cost.estimate import Estimate, exact, sum_of
from paceline.cost.features import decode_shape, features
from paceline.cost.linear import LinearStepCost
from paceline.cost.model import StepCost
from paceline.cost.prior import Degrees, StepPrior
from paceline.cost.transfer import Link, Transfers
from paceline.cost.ttft import predict_ttft

__all__ = [
    "Calibration",
    "CalibrationKey",
    "Degrees",
    "EngineSnapshot",
    "Estimate",
    "LinearStepCost",
    "Link",
    "StepCost",
    "StepPrior",
    "TimedCell",
    "Transfers",
    "decode_calibration",
    "decode_shape",
    "encode_calibration",
    "exact",
    "features",
    "joined",
    "predict_ttft",
    "prefill_shape",
    "restore",
    "sum_of",
]
