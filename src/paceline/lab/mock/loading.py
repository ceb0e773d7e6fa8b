"""Scripts from files and dictionaries: TOML or JSON, every name known, every number possible."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import ConfigError
from paceline.lab.mock.script import Base, Fault, Match, Reply, Rule, Script, ScriptChunk, Service

_PARTS: tuple[type[Base], ...] = (Script, Rule, Match, Reply, Service, Fault, ScriptChunk)
_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `(.*?)`)?")


def load_script(source: str | Path | Mapping[str, Any]) -> Script:
    """A checked script from a file (.toml, or JSON by any other name) or from plain values.

    ConfigError if it is not one: it names what is unknown and the nearest name there is.
    """
    if isinstance(source, Mapping):
        values: Any = dict(source)
    else:
        values = _read(Path(source))
    return script_of(values)


def script_of(values: Any) -> Script:
    try:
        script = msgspec.convert(values, Script)
    except msgspec.ValidationError as error:
        raise _explain(error) from None
    check_script(script)
    return script


def script_json(data: bytes | str) -> Script:
    """A checked script from JSON."""
    try:
        return script_of(msgspec.json.decode(data))
    except msgspec.DecodeError as error:
        raise ConfigError("the script is not JSON", seen=error) from None


def check_script(script: Script) -> None:
    """ConfigError if a number cannot be, or a choice is not one."""
    if not script.models or script.max_model_len < 1:
        raise ConfigError("a server has a model and room for a token", seen=(script.models, script.max_model_len))
    _one_of(script.reply, script.service, "the script")
    for number, rule in enumerate(script.rules):
        if rule.reply is None and rule.service is None:
            raise ConfigError(f"rules[{number}] does nothing", fix="give it a reply or a service")
        _one_of(rule.reply, rule.service, f"rules[{number}]")
        if rule.match.regex is not None:
            try:
                re.compile(rule.match.regex)
            except re.error as error:
                raise ConfigError(f"rules[{number}].match.regex is no pattern", seen=error) from None
    for part in _all_parts(script):
        if isinstance(part, Service):
            _check_service(part)
        for name in part.__struct_fields__:
            value = getattr(part, name)
            negative = isinstance(value, int | float) and value < 0
            if name not in ("seed", "usage_offset_tokens") and negative:
                raise ConfigError(f"{name} of a {type(part).__name__} is negative", seen=value, expected="0 or more")


def _check_service(service: Service) -> None:
    if not service.bundles or min(service.bundles) < 1:
        raise ConfigError("a chunk has a token at least", seen=service.tokens_per_chunk, expected="1 or more")
    if service.slots == 0 or service.block_tokens < 1:
        raise ConfigError("slots and block_tokens are 1 or more", seen=(service.slots, service.block_tokens))


def _one_of(reply: Reply | None, service: Service | None, where: str) -> None:
    if reply is not None and service is not None:
        raise ConfigError(f"{where} has both a reply and a service", expected="one of them")


def _all_parts(part: Base) -> Iterator[Base]:
    yield part
    for name in part.__struct_fields__:
        value = getattr(part, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Base):
                yield from _all_parts(inner)


def _read(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError("the script cannot be read", seen=f"{path}: {error.strerror}") from None
    try:
        return tomllib.loads(data.decode()) if path.suffix == ".toml" else msgspec.json.decode(data)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("the script cannot be read", seen=f"{path}: {error}") from None


def _explain(error: msgspec.ValidationError) -> ConfigError:
    found = _UNKNOWN.search(str(error))
    if found is None:
        return ConfigError("the script is not right", seen=error)
    name, where = found.group(1), found.group(2) or "$"
    known = sorted({field for part in _PARTS for field in part.__struct_fields__})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return ConfigError(
        "the script has a name that is not known",
        seen=f"{name} at {where}",
        fix=f"did you mean {close[0]}?" if close else "docs/reference/mock.md has all names",
    )
