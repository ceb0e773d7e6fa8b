"""Simulation: virtual time and an executor that asks a cost model instead of computing.

The scheduler, KV manager and loop that run here are the engine's own, so what is learnt here holds there. May import
engine, cost and contracts; never torch.
"""

from __future__ import annotations

from paceline.sim.clock import VirtualClock
from paceline.sim.executor import SimulatedExecutor, seeded_oracle, simulated_caps

__all__ = ["SimulatedExecutor", "VirtualClock", "seeded_oracle", "simulated_caps"]
