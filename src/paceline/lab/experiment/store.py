"""An experiment's folder: made once, held by one process at a time, resumed only from the spec that made it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import paceline
from paceline.errors import ConfigError, LabError
from paceline.lab.experiment.results import (
    RESULT_FILE,
    ExperimentResult,
    PointResult,
    read_experiment,
    write_experiment,
)
from paceline.lab.experiment.spec import Loaded

SPEC_FILE = "spec.json"
NODES = "nodes"  # all runs lie in it


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Alone in this folder. Raises LabError when another process is. The lock ends with its process, killed or not."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not a Unix: no protection
            pass
        except OSError:
            raise LabError("another experiment runs in this folder", seen=folder, fix="wait, or use --out") from None
        yield


def open_experiment(folder: Path, loaded: Loaded) -> ExperimentResult:
    """A new result, or the one that was interrupted, without the points that are not whole.

    Raises ConfigError when the folder belongs to another spec or another version of paceline.
    """
    if not (folder / RESULT_FILE).exists():
        return _new(folder, loaded)
    found = read_experiment(folder)
    if found.spec_sha256 != loaded.sha256:
        raise ConfigError(
            "the spec has changed since this experiment began: points of two specs do not belong together",
            seen=f"{folder / RESULT_FILE} of {found.created}",
            fix="start it in another folder (--out), or restore the spec",
        )
    made_by = found.fingerprint.get("versions", {}).get("paceline")
    if made_by not in (None, paceline.__version__):
        raise ConfigError(
            "this experiment was begun with another version of paceline",
            seen=made_by,
            expected=paceline.__version__,
            fix="start it in another folder (--out)",
        )
    kept = tuple(p for p in found.points if is_whole(folder, p))
    nodes = folder.resolve() / NODES
    for point in found.points:
        run = (folder / point.path).resolve()
        if point not in kept and run.is_relative_to(nodes) and run != nodes:
            shutil.rmtree(run, ignore_errors=True)
    return msgspec.structs.replace(found, points=kept, status="running", answer="", best=None, edges=())


def is_whole(folder: Path, point: PointResult) -> bool:
    """Measured to the end, and still there."""
    return point.status == "ok" and (folder / point.path / "metrics.json").is_file()


def _new(folder: Path, loaded: Loaded) -> ExperimentResult:
    if any(p.name != ".lock" for p in folder.iterdir()):
        raise ConfigError(
            "the folder is not empty, and holds no experiment", seen=folder, fix="name another with --out"
        )
    spec, general = loaded.spec, loaded.spec.experiment
    result = ExperimentResult(
        name=general.name,
        question=general.question,
        created=now(),
        spec_sha256=loaded.sha256,
        spec=msgspec.to_builtins(spec),
        repeats=general.repeats,
        order=general.order,
        decides="max_rate_rps" if spec.search else general.decides,
        margin=general.margin,
    )
    text = {"sha256": loaded.sha256, "spec": result.spec, "workload": loaded.workload}
    (folder / SPEC_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(text), indent=1))
    write_experiment(folder, result)
    return result


def fresh(folder: Path) -> Path:
    """This place for a run, empty: what an interrupted point left there is no part of the experiment."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
