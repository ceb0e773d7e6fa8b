"""The option table, read from the tree's own types: names, defaults, bounds, documentation, groups.

Command line, documentation, nearest-name hints and the test that freezes the option list all read this one table.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from paceline.config.server import ServerConfig
from paceline.config.tree import EngineConfig, Group

TOP = ""
SERVER = "server"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option of the tree."""

    name: str  # unique over all sections
    section: str  # "" = top level of the tree
    type: Any  # what a value must be, None included where it may be left out
    default: Any
    doc: str
    group: Group
    unit: str = ""
    derived: bool = False  # None lets the profile choose
    choices: tuple[str, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    power_of_two: bool = False
    secret: bool = False

    @property
    def several(self) -> bool:
        """Takes a list; its flag may be given again."""
        return get_origin(self.type) is tuple

    @property
    def optional(self) -> bool:
        return type(None) in get_args(self.type)

    @property
    def shown_default(self) -> str:
        return "none" if self.default in (None, (), "") else str(self.default).lower()

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def expected(self) -> str:
        """What a value may be, in words."""
        words = [_type_words(self.type)]
        if self.ge is not None:
            words.append(f"at least {self.ge:g}")
        if self.gt is not None:
            words.append(f"above {self.gt:g}")
        if self.le is not None:
            words.append(f"at most {self.le:g}")
        if self.power_of_two:
            words.append("a power of two")
        return ", ".join(words) + (", or none" if self.optional else "")


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, None left out; a plain type is its own only alternative."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(a for a in get_args(hint) if a is not type(None))
    return (hint,)


def _type_words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return "a list of texts"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    words = []
    for member in _members(hint):
        if get_origin(member) is Literal:
            words.append("one of " + ", ".join(get_args(member)))
        else:
            words.append(names[member])
    return " or ".join(words)


def _choices(hint: Any) -> tuple[str, ...]:
    return tuple(c for member in _members(hint) if get_origin(member) is Literal for c in get_args(member))


def _collect(struct: type[msgspec.Struct], section: str) -> list[Option]:
    hints = get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            assert section == TOP, f"{section}.{field.name} has no option() metadata"
            found += _collect(hint, field.name)
            continue
        plain, meta = get_args(hint)
        found.append(
            Option(
                name=field.name,
                section=section,
                type=plain,
                default=field.default,
                doc=meta.description or "",
                choices=_choices(plain),
                **meta.extra,
            )
        )
    return found


@cache
def option_table() -> dict[str, Option]:
    """Every option of the engine by name, in tree order."""
    return _by_name(_collect(EngineConfig, TOP))


@cache
def server_table() -> dict[str, Option]:
    """Every option of the server process by name."""
    return _by_name(_collect(ServerConfig, SERVER))


@cache
def full_table() -> dict[str, Option]:
    """All options, those of the engine first."""
    return _by_name([*option_table().values(), *server_table().values()])


def _by_name(options: list[Option]) -> dict[str, Option]:
    table = {o.name: o for o in options}
    assert len(table) == len(options), "two sections share an option name"
    return table


def sections() -> tuple[str, ...]:
    """The engine tree's section names, in order."""
    return tuple(dict.fromkeys(o.section for o in option_table().values() if o.section))
