"""Which reader a trace needs, by name or by what its first line looks like. Read once, kept while the file stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from paceline.errors import ConfigError
from paceline.lab.workload.traces.blocks import read_bailian, read_mooncake
from paceline.lab.workload.traces.files import lines
from paceline.lab.workload.traces.rows import TraceSource
from paceline.lab.workload.traces.servegen import read_servegen
from paceline.lab.workload.traces.tables import AZURE, BURSTGPT, read_azure, read_burstgpt

FORMATS: dict[str, Callable[[Path], TraceSource]] = {
    "azure": read_azure,
    "mooncake": read_mooncake,
    "burstgpt": read_burstgpt,
    "bailian": read_bailian,
    "servegen": read_servegen,
}


def open_trace(path: Path, format: str = "auto") -> TraceSource:
    """The trace, from memory if the file has not changed. Raises ConfigError if it cannot be read or recognised."""
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError("the trace cannot be read", seen=f"{path}: {error.strerror}") from None
    return _read(path, format, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, format: str, mtime_ns: int, size: int) -> TraceSource:  # noqa: ARG001 - part of the cache's key
    return FORMATS[detect(path) if format == "auto" else format](path)


def detect(path: Path) -> str:
    """The format's name by its first line, or ConfigError."""
    if path.is_dir() or path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return "servegen"
    first = next(lines(path), "")
    if first.lstrip().startswith("{"):
        return "bailian" if '"chat_id"' in first else "mooncake"
    names = [name.strip() for name in first.split(",")]
    for name, columns in (("azure", AZURE), ("burstgpt", BURSTGPT)):
        if all(column in names for column in columns):
            return name
    raise ConfigError(
        "the trace's format was not recognised", seen=first[:80], expected=", ".join(FORMATS), fix="say format = ..."
    )
