"""From TOML or a dict to a checked spec. An unknown key is an error that names the nearest known one and its place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import ConfigError
from paceline.lab.workload.check import check_spec
from paceline.lab.workload.slo import slo_class
from paceline.lab.workload.spec import WorkloadSpec
from paceline.lab.workload.unknown import refuse_unknown

_MAX_BYTES = 4 * 2**20
_FILES = ("arrival", "input", "output")


def load_spec(source: str | Path | Mapping[str, Any], *, base: Path | None = None) -> WorkloadSpec:
    """A spec from a TOML file, or from a dict of the same form (what `spec_to_dict` gives, too).

    Files named in it are looked for beside the TOML file (`base` for a dict; the working directory if None). Keys of
    an experiment in the same file (`OTHER_TABLES`) are left alone.
    Raises ConfigError: file, place, what was seen and the nearest known name.
    """
    if isinstance(source, Mapping):
        return _build(dict(source), base, "the spec")
    path = Path(source)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError("the spec is too big", seen=str(path), expected="4 MiB at most")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("the spec cannot be read", seen=f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML", seen=str(error)) from None
    for other in OTHER_TABLES:
        table.pop(other, None)
    table.setdefault("name", path.stem)
    return _build(table, base or path.resolve().parent, str(path))


OTHER_TABLES = (
    *("experiment", "server", "graph", "rates", "start", "workload"),
    *("quality", "search", "gates", "energy", "cost"),
)
"""Top-level tables of an experiment's file that belong to other parts of the lab."""


def spec_to_dict(spec: WorkloadSpec) -> dict[str, Any]:
    """Plain values from which `load_spec` builds an equal spec."""
    built: dict[str, Any] = msgspec.to_builtins(spec)
    return built


def _build(table: dict[str, Any], base: Path | None, where: str) -> WorkloadSpec:
    table = dict(table)
    slo = table.pop("slo", {})
    if not isinstance(slo, Mapping):
        raise ConfigError(f"{where}: slo must be a table of classes", seen=type(slo).__name__, fix="[slo.default]")
    table["slo"] = {str(name): slo_class(str(name), terms) for name, terms in slo.items()}
    if not table.get("stream"):
        raise ConfigError(f"{where} has no stream", fix="add a table [[stream]] with an arrival")
    table["stream"] = (
        [_stream(s, base) for s in table["stream"]] if isinstance(table["stream"], list) else table["stream"]
    )
    refuse_unknown(table, WorkloadSpec, "")
    try:
        spec = msgspec.convert(table, WorkloadSpec, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} has a wrong value", seen=str(error)) from None
    return check_spec(spec)


def _stream(stream: Any, base: Path | None) -> Any:
    """A number for a length is a fixed length; names of files become absolute."""
    if not isinstance(stream, Mapping):
        return stream
    stream = dict(stream)
    for name in ("input", "output"):
        if isinstance(stream.get(name), int) and not isinstance(stream[name], bool):
            stream[name] = {"kind": "fixed", "tokens": stream[name]}
    for name in _FILES:
        part = stream.get(name)
        if isinstance(part, Mapping) and isinstance(part.get("file"), str):
            stream[name] = {**part, "file": _absolute(part["file"], base)}
    if isinstance(stream.get("file"), str):
        stream["file"] = _absolute(stream["file"], base)
    return stream


def _absolute(file: str, base: Path | None) -> str:
    return str((base or Path.cwd()) / Path(file).expanduser())
