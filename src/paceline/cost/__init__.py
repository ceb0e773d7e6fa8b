"""What work costs: milliseconds for a step, bytes for memory. Decides nothing; scheduler, planner and simulator ask it.

`linear` holds a first step-time model with given coefficients, `memory` the memory ledger. May import contracts and
numpy; never torch, never the engine.
"""

from __future__ import annotations

from paceline.cost.linear import LinearStepCost

__all__ = ["LinearStepCost"]
