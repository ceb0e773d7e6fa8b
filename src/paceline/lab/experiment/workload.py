"""Which workload an experiment asks: from its file, another one, or a name of the matrix scaled to the base's server.

It is resolved once, before anything is measured, and written down: an experiment that goes on later asks the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from paceline.errors import ConfigError
from paceline.lab.experiment.process import OwnedServer
from paceline.lab.experiment.results import ExperimentResult
from paceline.lab.experiment.sizing import measure_size
from paceline.lab.experiment.spec import Loaded
from paceline.lab.load import probe
from paceline.lab.workload import MATRIX, WorkloadSpec, load_spec, named


def stored_workload(result: ExperimentResult) -> WorkloadSpec | None:
    """What an interrupted experiment resolved."""
    return msgspec.convert(result.workload, WorkloadSpec) if result.workload else None


def given_workload(loaded: Loaded) -> WorkloadSpec | None:
    """A workload that needs no server to be known; None for a name of the matrix. Raises ConfigError."""
    given = loaded.workload
    if isinstance(given, dict):
        return load_spec(given, base=loaded.folder)
    if Path(given).suffix == ".toml" or "/" in given:
        return load_spec(Path(given))
    if given not in MATRIX:
        raise ConfigError("no such workload", seen=given, expected=", ".join(MATRIX), fix="or name a .toml file")
    return None


def resolve_workload(loaded: Loaded, server: OwnedServer) -> WorkloadSpec:
    """A name of the matrix, scaled to this server. Raises ConfigError for one that stands for several loads."""
    assert isinstance(loaded.workload, str), "tables are known without a server"
    target = asyncio.run(probe(server.url, api_key=server.launch.api_key))
    found = named(loaded.workload, measure_size(target))
    if len(found) != 1:
        raise ConfigError(
            "an experiment asks one workload",
            seen=f"{loaded.workload}: {', '.join(spec.name for spec in found)}",
            fix="name one of these, or write the streams into the spec",
        )
    return found[0]
