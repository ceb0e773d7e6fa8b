"""Simulation: virtual time, and an executor that asks a cost model instead of computing.

    replica     one engine: the engine's own scheduler, KV manager and prefix cache, step by step or run by run
    cluster     replicas behind a router's policy, under a load, with failures and cold starts: the event loop
    client      the load's side: schedules, sessions, closed loops; `prompts` makes up what it sends
    split       prompts on some replicas, answers on others
    tiered      replicas with lower tiers of the KV cache: `tiers` holds blocks, `restores` chooses what to bring back
    recorded    a journal run again in virtual time
    fleet       `make_cluster`: a simulation put together; `Cluster.run` runs it
    record      what the lab stores, so that its metrics and its report are the only ones
    events, clock, pace, executor    what these stand on

The deciders that run here are the engine's and the router's own, so what is learnt here holds there. May import engine,
router, cost, contracts, and of the lab its workloads; never torch. The host's time never enters virtual time.
Import from the module that defines a name; `executor` and `clock` are enough to run one engine without a load.
"""

from __future__ import annotations

from paceline.sim.clock import VirtualClock
from paceline.sim.executor import SimulatedExecutor, seeded_oracle, simulated_caps

__all__ = ["SimulatedExecutor", "VirtualClock", "seeded_oracle", "simulated_caps"]
