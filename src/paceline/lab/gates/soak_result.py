"""What a soak leaves behind: one checkpoint after each phase of load, when the server has nothing to do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.contracts.artefact import TargetInfo
from paceline.errors import LabError

SOAK_FILE = "soak.json"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The server at rest. None: it could not be read."""

    t_s: float  # since the soak began
    idle: bool = True  # nothing ran or waited any more, or nobody could tell
    rss_bytes: float | None = None
    num_fds: float | None = None
    num_held_blocks: float | None = None  # KV blocks that some request holds: 0 at rest
    num_free_blocks: float | None = None  # free or findable
    kv_usage: float | None = None  # share, where only that is told
    num_restarts: float | None = None  # of the engine, since the server started
    started_at: float | None = None  # of the process, Unix time: a change is a restart


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of load."""

    begin_s: float
    seconds: float
    num_requests: int
    outcomes: dict[str, int]
    longest_silence_s: float  # no token anywhere while requests were in flight
    silence_at_s: float = 0.0  # since the phase began
    goodbyes: int = 0  # cancels and disconnects on purpose
    num_unasked: int = 0  # requests that ended ill although the client did not end them


class SoakResult(msgspec.Struct, kw_only=True):
    """Everything `stability` judges by."""

    target: TargetInfo
    asked_s: float
    ran_s: float = 0.0
    checkpoints: list[Checkpoint] = []
    phases: list[Phase] = []
    died: str = ""  # the server stopped answering: what was seen
    hung: str = ""  # the watchdog ended the soak
    interrupted: bool = False
    sources: dict[str, str] = {}  # resource -> where it was read
    created: str = ""  # ISO 8601, UTC
    workload: dict[str, object] = {}


def write_soak(folder: Path, result: SoakResult) -> Path:
    """Replaces the file whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SOAK_FILE
    temporary = path.with_suffix(".json.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    temporary.replace(path)
    return path


def read_soak(path: Path) -> SoakResult:
    """Of a soak's folder or file. Raises LabError."""
    file = path / SOAK_FILE if path.is_dir() else path
    try:
        return msgspec.json.decode(file.read_bytes(), type=SoakResult)
    except (OSError, msgspec.MsgspecError) as error:
        raise LabError("there is no soak here", seen=f"{file}: {error}"[:300]) from None
