"""Quality as tables: which items flipped, how far two models are apart by position, what the scores are.

Reads what quality stores, as plain JSON: sets with the fields of `lab.quality.SetComparison` (or of a lone score) under
`comparisons` and `scores`, divergence under `divergence`. What it does not know is shown as names and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.lab.report.page import Block, Cell, Facts, Row, Section, Table, Words
from paceline.lab.report.provenance import flat
from paceline.lab.report.verdict import gate_of
from paceline.lab.report.words import NOTHING, count, number, share

_GATE_TONES: dict[Answer, Literal["good", "bad"]] = {Answer.PASS: "good", Answer.FAIL: "bad", Answer.INVALID: "bad"}
_TONES: dict[str, Literal["", "good", "bad", "muted"]] = {"not worse": "good", "worse": "bad"}


def quality_section(gates: Sequence[GateResult], quality: Mapping[str, Any]) -> Section:
    """From the gates of quality and safety, and from what is stored beside a run or node."""
    stored = dict(quality)
    judged = [gate for gate in gates if gate.gate in ("quality", "safety") and gate.answer is not Answer.NOT_MEASURED]
    blocks: list[Block] = []
    if judged:
        blocks += [_judged(judged), *_lost(judged)]
    comparisons = list(_mappings(stored.pop("comparisons", ())))
    if comparisons:
        blocks += [_discordance(comparisons), *_flipped(comparisons)]
    scores = list(_mappings(stored.pop("scores", ())))
    if scores:
        blocks.append(_scores(scores))
    divergence = stored.pop("divergence", None)
    if isinstance(divergence, Mapping):
        blocks += _divergence(divergence)
    if stored:
        blocks.append(Facts(flat(stored), "More"))
    if not blocks:
        return Section("quality", "Quality", (Words("Not measured: no quality set was scored.", "missing"),))
    intro = (
        "Paired by item: both answered the same question, so that only answers that flipped count."
        if judged or comparisons
        else ""
    )
    return Section("quality", "Quality", tuple(blocks), intro)


def _judged(gates: Sequence[GateResult]) -> Table:
    rows: list[Row] = []
    for gate in gates:
        shown = gate_of(gate)
        flips = [gate.evidence.get(key) for key in ("only_reference", "only_candidate")]
        rows.append(
            (
                gate.subject or gate.gate, Cell(shown.value or NOTHING, shown.interval), shown.limit or NOTHING,
                *(count(n) if isinstance(n, int) else NOTHING for n in flips),
                number(_number(gate.evidence.get("mcnemar_p"))),
                Cell(gate.answer.value, tone=_GATE_TONES.get(gate.answer, "")),
            )
        )  # fmt: skip
    columns = ("what", "value", "limit", "lost", "won", "McNemar p", "answer")
    return Table(
        columns,
        tuple(rows),
        caption="Which answers changed: lost are right in the reference only, won in the candidate only",
    )


def _lost(gates: Sequence[GateResult]) -> list[Block]:
    items = [(gate.subject, gate.evidence.get("lost")) for gate in gates]
    found = tuple(
        (subject, ", ".join(map(str, names))) for subject, names in items if isinstance(names, list | tuple) and names
    )
    return [Facts(found, "Items that were lost")] if found else []


def _discordance(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        "set",
        "of",
        "items",
        "reference",
        "candidate",
        "difference",
        "both right",
        "lost",
        "won",
        "both wrong",
        "McNemar p",
        "answer",
    )
    rows: list[Row] = []
    for one in comparisons:
        answer = str(one.get("answer", ""))
        difference = estimate_of(one.get("difference"))
        rows.append(
            (
                str(one.get("set", "")), str(one.get("what", "")), count(int(one.get("num_items", 0))),
                share(_number(one.get("reference"))), share(_number(one.get("candidate"))),
                Cell(_points(difference.value), f"[{_points(difference.lo)}, {_points(difference.hi)}] points"),
                *(count(int(one.get(key, 0))) for key in ("both", "only_reference", "only_candidate", "neither")),
                number(_number(one.get("mcnemar_p"))),
                Cell(answer, f"margin {_points(_number(one.get('margin')))}", _TONES.get(answer, "")),
            )
        )  # fmt: skip
    return Table(
        columns, tuple(rows), num_words=2, caption="Discordance: which answers changed between reference and candidate"
    )


def _flipped(comparisons: Sequence[Mapping[str, Any]]) -> list[Block]:
    blocks: list[Block] = []
    for one in comparisons:
        names = [(word, ", ".join(map(str, one.get(key, ())))) for word, key in (("lost", "lost"), ("won", "won"))]
        if items := tuple((word, listed) for word, listed in names if listed):
            blocks.append(Facts(items, f"Items of {one.get('set', '')} that flipped"))
    return blocks


def _scores(scores: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[Row] = []
    for one in scores:
        accuracy = estimate_of(one.get("accuracy"))
        rows.append(
            (
                str(one.get("set", "")), str(one.get("model", "")), str(one.get("mode", "")),
                count(int(one.get("num_items", accuracy.n))),
                Cell(share(accuracy.value), f"[{share(accuracy.lo)}, {share(accuracy.hi)}]"),
            )
        )  # fmt: skip
    return Table(("set", "model", "asked", "items", "right"), tuple(rows), num_words=3, caption="Scores")


def _divergence(divergence: Mapping[str, Any]) -> list[Block]:
    rows: list[Row] = []
    for one in _mappings(divergence.get("buckets", ())):
        kl, top1 = estimate_of(one.get("kl")), estimate_of(one.get("top1"))
        rows.append(
            (
                str(one.get("bucket", "")), count(int(one.get("num_positions", 0))),
                Cell(number(kl.value), f"[{number(kl.lo)}, {number(kl.hi)}]"),
                number(_number(one.get("kl_upper"))),
                Cell(share(top1.value), f"[{share(top1.lo)}, {share(top1.hi)}]"),
            )
        )  # fmt: skip
    if not rows:
        return [Facts(flat(divergence), "Divergence")]
    columns = ("position", "positions", "KL, at least (nats)", "at most", "same first choice")
    return [Table(columns, tuple(rows), caption="Divergence from the reference by position")]


def estimate_of(value: Any) -> Estimate:
    """Stored estimates are plain mappings."""
    if isinstance(value, Estimate):
        return value
    try:
        return msgspec.convert(value, Estimate)
    except msgspec.ValidationError:
        return Estimate(reason="not measured")


def _mappings(values: Any) -> Iterable[Mapping[str, Any]]:
    values = values.values() if isinstance(values, Mapping) else values
    return (msgspec.to_builtins(v) for v in values if isinstance(v, Mapping | msgspec.Struct))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _points(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f}".replace("-", "−")
