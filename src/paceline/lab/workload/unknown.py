"""Keys that no field has: refused with their place and the nearest name. msgspec says where; it does not say what."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from paceline.errors import ConfigError


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint with the known name that this one resembles most; empty if none does."""
    close = difflib.get_close_matches(str(name)[:80], list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""


def refuse_unknown(value: Any, kind: Any, where: str) -> None:
    """ConfigError at the first key, at any depth, that no field of the type has."""
    members = [m for m in (get_args(kind) or (kind,)) if isinstance(m, type) and issubclass(m, msgspec.Struct)]
    if get_origin(kind) is dict or not members:
        if isinstance(value, list | tuple) and get_origin(kind) in (list, tuple):
            for i, item in enumerate(value):
                refuse_unknown(item, get_args(kind)[0], f"{where}[{i}]")
        return
    if get_origin(kind) in (list, tuple):
        for i, item in enumerate(value if isinstance(value, list | tuple) else ()):
            refuse_unknown(item, get_args(kind)[0], f"{where}[{i}]")
        return
    if not isinstance(value, Mapping):
        if not isinstance(value, int | float | str | bool | list | tuple | None):
            return
        if value is not None:
            raise ConfigError(f"{where or 'the spec'} must be a table", seen=repr(value)[:80])
        return
    found = _member(value, members, where)
    if found is None:
        return
    hints = get_type_hints(found)
    names = {f.encode_name: hints[f.name] for f in msgspec.structs.fields(found)}
    tag = found.__struct_config__.tag_field
    for key, item in value.items():
        place = f"{where}.{key}" if where else str(key)
        if key == tag:
            continue
        if key not in names:
            raise ConfigError(
                f"unknown key {place}",
                seen=key,
                expected=", ".join(([tag] if tag else []) + list(names)),
                fix=nearest(key, names) or "leave it out",
            )
        refuse_unknown(item, names[key], place)


def _member(value: Mapping[str, Any], members: list[Any], where: str) -> Any:
    """Which struct of a union a table is, by its `kind`."""
    tag = members[0].__struct_config__.tag_field
    if tag is None or len(members) == 1:
        return members[0]
    kinds = {m.__struct_config__.tag: m for m in members}
    kind = value.get(tag)
    if kind not in kinds:
        raise ConfigError(
            f"{where}.{tag} is not known" if kind is not None else f"{where} has no {tag}",
            seen=kind,
            expected=", ".join(map(str, kinds)),
            fix=nearest(kind, map(str, kinds)) if kind is not None else f'{tag} = "{next(iter(kinds))}"',
        )
    return kinds[kind]
