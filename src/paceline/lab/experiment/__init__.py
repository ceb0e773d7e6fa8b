"""Experiments: servers owned, caches in a known state, arms interleaved, one group of options changed at a time.

    measure          one point against a server that is there: what `paceline bench`, `tune` and the demo share
    runner, spec     a whole experiment from a TOML file; resumes where it was interrupted
    results          what is left in experiment.json
    nodes, diff, groups, arms   what each node really runs with, and whether an edge changed one group only
    process, keeper  a server that never outlives the lab; page_cache makes its start cold
    visit, schedule, rate_search, sizing   who is measured when, and at which rates
    cache_protocol, energy, server_metrics, fingerprint, quality   what is done and read beside a load
    edges, conclude, verdicts   from points to ratios, verdicts and the best node

May import every part of the lab but `report`. Never imports the engine or the server: processes and HTTP are all it
knows of them. Names are imported when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.lab.experiment.measure import MeasureOptions, measure
    from paceline.lab.experiment.process import Launch, OwnedServer, paceline_argv
    from paceline.lab.experiment.rate_search import Search, search_rate
    from paceline.lab.experiment.results import ExperimentResult, read_experiment
    from paceline.lab.experiment.runner import run_experiment
    from paceline.lab.experiment.sizing import measure_size
    from paceline.lab.experiment.spec import load_experiment

_HOMES = {
    "ExperimentResult": "results",
    "Launch": "process",
    "MeasureOptions": "measure",
    "OwnedServer": "process",
    "Search": "rate_search",
    "load_experiment": "spec",
    "measure": "measure",
    "measure_size": "sizing",
    "paceline_argv": "process",
    "read_experiment": "results",
    "run_experiment": "runner",
    "search_rate": "rate_search",
}

__all__ = [
    "ExperimentResult",
    "Launch",
    "MeasureOptions",
    "OwnedServer",
    "Search",
    "load_experiment",
    "measure",
    "measure_size",
    "paceline_argv",
    "read_experiment",
    "run_experiment",
    "search_rate",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
