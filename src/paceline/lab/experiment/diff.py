"""What really differs between two nodes, and whether an edge keeps its promise to change one group only. Pure.

Two checks, of which the second is the one that counts:

1. before anything starts: the group of each option an edge names must be the edge's;
2. after each node was started once: the *resolved* configurations of parent and child are compared, and every option
   that differs must be of the edge's group, also where the server derived it.

So that derived values do not drift with the machine's mood from start to start, they are pinned: a child gets, as
explicit options, what its parent's server derived in all other groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from paceline.errors import ConfigError
from paceline.lab.experiment.groups import canonical, group_of, plain
from paceline.lab.experiment.results import OptionChange

OWN = frozenset({"server.host", "server.port", "host", "port"})
"""Where a server listens is the lab's choice, no variable."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """One option as a server runs with it."""

    value: Any
    group: str
    derived: bool = False  # the server chose the value; nobody set it


Options = dict[str, Resolved]


def resolved(report: Mapping[str, Any]) -> Options:
    """The options of a paceline server's `/v1/internal/config`. Raises ConfigError where one has no group."""
    found = {}
    for row in report.get("options", ()):
        name = row.get("name", "")
        if "group" not in row:
            raise ConfigError("an option of the server has no group", seen=name)
        found[name] = Resolved(
            value=row.get("value"), group=canonical(row["group"]), derived=row.get("source") == "profile"
        )
    return found


def declared(options: Mapping[str, Any], known: Mapping[str, str], said: Mapping[str, str]) -> Options:
    """What the spec sets, for a server that does not tell what became of it. Raises ConfigError."""
    return {name: Resolved(value=value, group=group_of(name, known, said)) for name, value in flat(options).items()}


def flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """`{"env": {"X": 1}}` as `{"env.X": 1}`; one level."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": deeper for inner, deeper in value.items()}
        else:
            found[name] = value
    return found


def differences(before: Options, after: Options, asked: Iterable[str] = ()) -> list[OptionChange]:
    """Every option that differs, those the edge asks for first."""
    names = {plain(name) for name in asked}
    found = []
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name), after.get(name)
        old_value, new_value = (old.value if old else None), (new.value if new else None)
        if name in OWN or old_value == new_value:
            continue
        group = (new or old).group  # type: ignore[union-attr]
        found.append(
            OptionChange(name=name, group=group, before=old_value, after=new_value, asked=plain(name) in names)
        )
    return sorted(found, key=lambda change: not change.asked)


def check_names(
    edge: str, group: str, change: Mapping[str, Any], known: Mapping[str, str], said: Mapping[str, str]
) -> None:
    """Check 1. Raises ConfigError naming the options of other groups."""
    others = {name: found for name in flat(change) if (found := group_of(name, known, said)) != group}
    if others:
        raise ConfigError(
            f"the edge to {edge} may change the group {group} alone",
            seen=", ".join(f"{name} ({found})" for name, found in others.items()),
            fix="make a node for each group: an effect of two changes at once belongs to neither",
        )


def check_edge(edge: str, group: str, changes: Iterable[OptionChange]) -> None:
    """Check 2. Raises ConfigError when something of another group differs, or nothing at all does."""
    changes = list(changes)
    others = [c for c in changes if c.group != group]
    if others:
        raise ConfigError(
            f"the edge to {edge} says that it changes {group}, but the servers' configurations differ in more",
            seen=", ".join(f"{c.name} ({c.group}): {c.before} -> {c.after}" for c in others),
            fix="set these options in base, so that both nodes have the same, or make a node for each group",
        )
    if not changes:
        raise ConfigError(
            f"the edge to {edge} changes nothing: both servers run with the same configuration",
            fix="change a value that the parent does not have already",
        )


def pins(parent: Options, group: str | None, set_names: Iterable[str], mode: str = "others") -> dict[str, Any]:
    """Options to hold fixed: what the parent's server derived and nobody set.

    `mode`: "others" leaves the edge's own group to be derived anew, "all" holds that too, "none" holds nothing.
    `group` None pins a node to its own first start.
    """
    if mode == "none":
        return {}
    taken = {plain(name) for name in set_names}
    return {
        name: option.value
        for name, option in parent.items()
        if option.derived
        and option.value is not None
        and plain(name) not in taken
        and (mode == "all" or option.group != group)
    }
