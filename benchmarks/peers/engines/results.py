"""Results on disk: a line of JSON added after each measurement, so that a run goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.table import Record, latest


class OtherSettingsError(Exception):
    """The file is of a run that measured something else."""


class Results:
    """`settings` say what is measured: a file of other settings is refused, unless `fresh` begins it anew."""

    def __init__(self, path: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self._records = read(path)
        found = next((r["settings"] for r in self._records if r["kind"] == "settings"), None)
        if found is None:
            self.add({"kind": "settings", "settings": settings})
        elif found != settings:
            differ = sorted(k for k in {*found, *settings} if found.get(k) != settings.get(k))
            raise OtherSettingsError(
                f"{path} was begun with other settings ({', '.join(differ)}): --fresh begins anew, --out names another"
            )

    @property
    def records(self) -> list[Record]:
        """The latest of each."""
        return latest(self._records)

    def add(self, record: Record) -> None:
        self._records.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def has(self, **wanted: Any) -> bool:
        """Whether there is a record with these fields."""
        return any(all(record.get(name) == value for name, value in wanted.items()) for record in self._records)

    def sessions(self) -> list[Record]:
        return [record for record in self._records if record["kind"] == "session"]


def read(path: Path) -> list[Record]:
    """Whole lines; one that was cut off by a crash is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
