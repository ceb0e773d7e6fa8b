"""Quality of the nodes: sets scored at each node's first visit, before its points; compared along edges. KL where a
change may move it.

    [quality]
    sets = [{ name = "basics" }, { name = "gsm8k.jsonl", n = 200 }]
    mode = "alone"               # or under_load: while the workload runs beside
    margin_points = 2.0
    texts = "texts.txt"          # for KL and top-1 on edges of kv and quantisation; paragraphs; none: not measured

Scores lie in quality/NODE/SET.json; a set that was scored is not scored again.
"""

from __future__ import annotations

import asyncio
import difflib
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from paceline.errors import ConfigError
from paceline.lab import quality as lab_quality
from paceline.lab.experiment.process import StoppedError
from paceline.lab.experiment.spec import Loaded
from paceline.lab.load import Target
from paceline.lab.quality import Caller, Comparison, SetComparison, SetScore
from paceline.lab.quality.under_load import load_beside
from paceline.lab.workload import WorkloadSpec

T = TypeVar("T")
CHANGES_KV = ("kv", "quantisation")  # groups whose edges get KL by position


class SetChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str  # shipped, or a JSONL file beside the spec
    n: int | None = None  # a sample of so many items


class QualityTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sets: tuple[SetChoice, ...] = ()
    mode: Literal["alone", "under_load"] = "alone"
    margin_points: float = 2.0
    max_tokens: int = 256
    max_concurrency: int = 8
    seed: int = 0
    form: Literal["chat", "completions"] = "chat"
    texts: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate needs of two nodes."""

    comparisons: tuple[SetComparison, ...] = ()
    scores: tuple[SetScore, ...] = ()
    divergence: Comparison | None = None
    notes: dict[str, str] = {}


def quality_table(table: dict[str, Any] | None) -> QualityTable | None:
    """Raises ConfigError with the nearest name for an unknown key."""
    if table is None:
        return None
    try:
        found = msgspec.convert(table, QualityTable)
    except msgspec.ValidationError as error:
        unknown = [key for key in table if key not in QualityTable.__struct_fields__]
        near = difflib.get_close_matches(unknown[0], QualityTable.__struct_fields__, n=1) if unknown else []
        raise ConfigError(f"[quality] is wrong: {error}", fix=f"did you mean {near[0]}?" if near else "") from None
    if not found.sets and found.texts is None:
        raise ConfigError("[quality] asks for nothing", fix='sets = [{ name = "basics" }]')
    return found


def sets_of(loaded: Loaded) -> list[lab_quality.QualitySet]:
    """Read before anything starts, so that a missing file is found then. Raises ConfigError."""
    table = quality_table(loaded.spec.quality)
    if table is None:
        return []
    found = []
    for choice in table.sets:
        source: str | Path = choice.name
        if choice.name not in lab_quality.SHIPPED:
            source = loaded.folder / choice.name
        found.append(lab_quality.load_set(source, limit=choice.n, seed=table.seed))
    names = [each.name for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError("two sets of [quality] have one name", seen=", ".join(twice), fix="rename a file")
    return found


def score_path(folder: Path, node: str, name: str) -> Path:
    return folder / "quality" / node / f"{name}.json"


def score_node(
    folder: Path,
    loaded: Loaded,
    node: str,
    target: Target,
    load: WorkloadSpec,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Scores what is not scored yet; under load, `load` runs beside. Raises LabError when no call of a set succeeds,
    StoppedError when `stop` is set: what is half scored is thrown away."""
    table = quality_table(loaded.spec.quality)
    if table is None:
        return
    for each in sets_of(loaded):
        path = score_path(folder, node, each.name)
        if path.exists():
            continue
        say(f"quality: {each.name}, {len(each.items)} items, {table.mode.replace('_', ' ')}")
        if table.mode == "alone":
            score = asyncio.run(_unless(stop, _score(each, table, target)))
        else:
            with load_beside(target, load, seed=table.seed) as beside:
                score = asyncio.run(_unless(stop, _score(each, table, target)))
            score = msgspec.structs.replace(score, notes=(*score.notes, beside.sentence))
        lab_quality.write_score(path, score)


async def _unless(stop: threading.Event, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises StoppedError as soon as `stop` is set."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait({task}, timeout=0.2)
        if stop.is_set() and not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise StoppedError
    return task.result()


async def _score(each: lab_quality.QualitySet, table: QualityTable, target: Target) -> SetScore:
    async with Caller(
        target.info.url, model=target.info.model, api_key=target.api_key, max_concurrency=table.max_concurrency
    ) as caller:
        return await lab_quality.score_set(
            caller, each, form=table.form, max_tokens=table.max_tokens, mode=table.mode.replace("_", " ")
        )


def summary(folder: Path, loaded: Loaded, node: str) -> dict[str, Any]:
    """`NodeResult.quality`: set -> share right with its interval, and the file."""
    found: dict[str, Any] = {}
    for each in sets_of(loaded):
        path = score_path(folder, node, each.name)
        if path.exists():
            score = lab_quality.read_score(path)
            found[each.name] = {
                "accuracy": msgspec.to_builtins(score.accuracy),
                "num_items": len(score.items),
                "num_failed": score.num_failed,
                "mode": score.mode,
                "file": str(path.relative_to(folder)),
            }
    return found


def compare_nodes(folder: Path, loaded: Loaded, parent: str, child: str) -> Found:
    """Scores of both nodes, paired by item."""
    table = quality_table(loaded.spec.quality)
    if table is None:
        return Found(notes={"quality": "the spec names no sets ([quality])"})
    comparisons: list[SetComparison] = []
    scores: list[SetScore] = []
    for each in sets_of(loaded):
        files = [score_path(folder, node, each.name) for node in (parent, child)]
        if all(file.exists() for file in files):
            reference, candidate = (lab_quality.read_score(file) for file in files)
            comparisons += lab_quality.compare_scores(reference, candidate, margin=table.margin_points / 100)
            scores.append(candidate)
    kept = divergence_path(folder, child)
    divergence = msgspec.json.decode(kept.read_bytes(), type=Comparison) if kept.exists() else None
    notes = {} if comparisons or divergence else {"quality": "no set was scored at both nodes"}
    return Found(comparisons=tuple(comparisons), scores=tuple(scores), divergence=divergence, notes=notes)


def divergence_path(folder: Path, child: str) -> Path:
    return folder / "quality" / child / "divergence.json"


def texts_of(loaded: Loaded) -> list[str]:
    """Paragraphs of the file that [quality] texts names."""
    table = quality_table(loaded.spec.quality)
    if table is None or table.texts is None:
        return []
    path = loaded.folder / table.texts
    try:
        paragraphs = [text.strip() for text in path.read_text(encoding="utf-8").split("\n\n")]
    except OSError as error:
        raise ConfigError("the texts of [quality] cannot be read", seen=path, expected=str(error)) from None
    return [text for text in paragraphs if text]


def measure_divergence(
    folder: Path, child: str, texts: list[str], urls: tuple[str, str], key: str | None, stop: threading.Event
) -> None:
    """KL and top-1 of child against parent, both running. `urls`: parent's, child's. Raises LabError, StoppedError."""

    async def run() -> Comparison:
        async with Caller(urls[0], api_key=key) as parent, Caller(urls[1], api_key=key) as candidate:
            return await lab_quality.prompt_divergence(parent, candidate, texts)

    found = asyncio.run(_unless(stop, run()))
    path = divergence_path(folder, child)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".json.new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    fresh.replace(path)
