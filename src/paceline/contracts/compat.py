"""Features declare what they need and what they cannot live with; unsound sets are refused at start, by name.

A *feature* is a switch of the configuration that is on ("prefix_cache", "batching:static", "kv_dtype:int8") or a fact
about model, device or executor ("device:cpu", "state:rewindable"). `config/features.py` holds the rows of this version
as one `Matrix`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from paceline.errors import UnsupportedError


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    needs: tuple[tuple[str, str], ...] = ()  # (feature, why)
    conflicts: tuple[tuple[str, str], ...] = ()  # (feature, why); symmetric
    instead: str | None = None  # nearest valid choice when this one cannot be
    available: bool = True  # False: named so that asking for it gives a clear answer
    why_not: str = ""  # when not available


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    feature: str
    other: str
    why: str
    instead: str | None


class Matrix:
    """All known features; judges a set of them."""

    def __init__(self, features: Iterable[Feature]) -> None:
        self.features = {f.name: f for f in features}

    def problems(self, active: Iterable[str]) -> list[Problem]:
        """Everything wrong with a set of active features, in the order given."""
        names = list(dict.fromkeys(active))
        found: list[Problem] = []
        for name in names:
            feature = self.features.get(name)
            if feature is None:
                continue
            if not feature.available:
                found.append(Problem(feature=name, other="", why=feature.why_not, instead=feature.instead))
            for needed, why in feature.needs:
                if needed not in names:
                    found.append(Problem(feature=name, other=needed, why=why, instead=feature.instead))
            for other, why in feature.conflicts:
                if other in names:
                    found.append(Problem(feature=name, other=other, why=why, instead=feature.instead))
        return found

    def nearest_valid(self, active: Iterable[str]) -> list[str]:
        """The set with each troubled feature replaced by its `instead`, or left out, until nothing is wrong."""
        names = list(dict.fromkeys(active))
        while problems := self.problems(names):
            bad = problems[0].feature
            at = names.index(bad)
            instead = problems[0].instead
            names[at : at + 1] = [instead] if instead is not None and instead not in names else []
        return names

    def check(self, active: Iterable[str]) -> None:
        """Raise UnsupportedError that names the pair, the reason and the nearest valid set."""
        names = list(dict.fromkeys(active))
        problems = self.problems(names)
        if not problems:
            return
        first = problems[0]
        pair = f"{first.feature} with {first.other}" if first.other else first.feature
        raise UnsupportedError(
            f"{pair} cannot be: {first.why}",
            seen=", ".join(names),
            fix=f"use {', '.join(self.nearest_valid(names)) or 'none of them'}",
        )
