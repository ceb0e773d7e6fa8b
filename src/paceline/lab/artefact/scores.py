"""Quality, where runs carry it: RUN/quality/*.json, one scored set each, paired item by item."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.contracts.artefact import Estimate
from paceline.errors import LabError
from paceline.lab.artefact.comparison import Line
from paceline.lab.stats.proportion import mcnemar_exact, paired_share_difference, share_estimate

FOLDER = "quality"
_MAX_BYTES = 64 << 20


class ScoredItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison needs of an item; other fields are skipped."""

    id: str
    right: bool


class ScoredSet(msgspec.Struct, frozen=True, kw_only=True):
    set: str
    set_sha256: str = ""
    form: str = ""
    items: tuple[ScoredItem, ...]


def read_scores(run: Path) -> dict[str, ScoredSet]:
    """Scored sets of a run by name; empty where it has none. LabError for a file that is none."""
    found: dict[str, ScoredSet] = {}
    for file in sorted((run / FOLDER).glob("*.json")):
        if file.stat().st_size > _MAX_BYTES:
            raise LabError(f"{file} is too large", seen=f"{file.stat().st_size} bytes", expected=f"{_MAX_BYTES}")
        try:
            scored = msgspec.json.decode(file.read_bytes(), type=ScoredSet)
        except msgspec.MsgspecError as error:
            raise LabError(f"{file} is no scored set", seen=str(error), fix="remove it, or score again") from None
        found[scored.set] = scored
    return found


def quality_lines(a: Path, b: Path, *, margin: float) -> list[Line]:
    """One line for each set that both runs answered, in the same form. `ratio` is the difference of the shares right
    (Newcombe's paired interval), p McNemar's."""
    left, right = read_scores(a), read_scores(b)
    return [_line(left[name], right[name], margin) for name in left if name in right and _same(left[name], right[name])]


def _same(a: ScoredSet, b: ScoredSet) -> bool:
    return a.set_sha256 == b.set_sha256 and a.form == b.form


def _line(a: ScoredSet, b: ScoredSet, margin: float) -> Line:
    before = {item.id: item.right for item in a.items}
    after = {item.id: item.right for item in b.items}
    both = [i for i in before if i in after]
    table = [(before[i], after[i]) for i in both]
    only_a, only_b = table.count((True, False)), table.count((False, True))
    difference = paired_share_difference(table.count((True, True)), only_a, only_b, table.count((False, False)))
    n = len(table)
    not_worse = "not worse" if difference.lo >= -margin else "worse" if difference.hi < -margin else "inconclusive"
    return Line(
        figure=f"quality:{a.set}",
        higher_is_better=True,
        a=share_estimate(sum(x for x, _ in table), n),
        b=share_estimate(sum(y for _, y in table), n),
        ratio=Estimate(
            value=difference.value if n else None,
            lo=difference.lo,
            hi=difference.hi,
            n=n,
            method="Newcombe paired 95 %",
            unit="share",
            reason="" if n else "no item in common",
        ),
        p=mcnemar_exact(only_a, only_b),
        not_worse=not_worse,
        margin=margin,
    )
