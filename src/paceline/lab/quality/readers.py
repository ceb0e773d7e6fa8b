"""Sets from files: our own form, and public ones recognised by the fields of their rows.

    ours          id, rule, prompt or messages, ...
    gsm8k         question, answer that ends with `#### number`
    ifeval        prompt, instruction_id_list, kwargs
    bfcl          question, function; accepted calls in `NAME_answers.jsonl` beside it (without that file: a set whose
                  name says irrelevance asks for no call, any other for a valid one)
    json schemas  schema (and no prompt): the request carries the schema, the reply must satisfy it

HumanEval-like files are refused: scoring them runs generated code, which this lab does not do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import ConfigError
from paceline.lab.quality.instructions import CHECKS
from paceline.lab.quality.items import Item, QualitySet, check_item, take

SHIPPED = {"basics": "basics.jsonl", "refusals": "refusals.jsonl"}
MOST_BYTES = 256 << 20

Row = dict[str, Any]


def load_set(source: str | Path, *, limit: int | None = None, seed: int = 0) -> QualitySet:
    """A shipped set by name, or a JSONL file. `limit` draws a sample. Raises ConfigError."""
    if str(source) in SHIPPED:
        text = resources.files("paceline.lab.quality").joinpath("sets", SHIPPED[str(source)]).read_text("utf-8")
        name, path, shown = str(source), None, "shipped"
    else:
        path = Path(source)
        text = _read(path)
        name, shown = path.stem, path.name
    rows = _rows(text, shown)
    items, left_out = _items(rows, name, path)
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise ConfigError(f"{shown}: two items have the same id", seen=twice)
    for item in items:
        check_item(item, shown)
    taken = take(items, limit, seed)
    if not taken:
        raise ConfigError(f"{shown} holds no item that can be checked", seen=f"{len(rows)} rows")
    notes = []
    if left_out:
        notes.append(f"{left_out} of {len(rows)} items left out: they hold an instruction this lab cannot check")
    if len(taken) < len(items):
        notes.append(f"a sample of {len(taken)} of {len(items)} items, seed {seed}")
    return QualitySet(name=name, items=taken, source=shown, num_left_out=left_out, notes=tuple(notes))


def _read(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(
            "no such quality set",
            seen=str(path),
            expected=f"a JSONL file, or one of {', '.join(SHIPPED)}",
            fix="check the path",
        )
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{path.name} is too large for a quality set", expected=f"at most {MOST_BYTES >> 20} MiB")
    return path.read_text("utf-8")


def _rows(text: str, shown: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{shown}, line {number}: not JSON", seen=str(error)) from None
        if not isinstance(row, dict):
            raise ConfigError(f"{shown}, line {number}: not a JSON object", seen=type(row).__name__)
        rows.append(row)
    if not rows:
        raise ConfigError(f"{shown} is empty", expected="one JSON object a line")
    return rows


def _items(rows: Sequence[Row], name: str, path: Path | None) -> tuple[list[Item], int]:
    """Items, and how many rows had none."""
    first = rows[0]
    if "rule" in first:
        return [_own(row, name) for row in rows], 0
    if {"question", "function"} <= first.keys():
        return _bfcl(rows, name, path), 0
    readers: list[tuple[set[str], Callable[[Row, int], Item | None]]] = [
        ({"prompt", "instruction_id_list"}, _ifeval),
        ({"question", "answer"}, _gsm8k),
        ({"schema"}, _schema),
    ]
    for fields, read in readers:
        if fields <= first.keys():
            found = [read(row, number) for number, row in enumerate(rows)]
            items = [item for item in found if item is not None]
            return items, len(found) - len(items)
    if {"entry_point", "test"} <= first.keys():
        raise ConfigError(
            f"{name}: scoring this set runs generated code, which the lab does not do",
            fix="score it in a sandbox of your own, and give the outcome as a JSONL set or through lm-eval",
        )
    raise ConfigError(
        f"{name}: rows of an unknown form",
        seen=", ".join(sorted(first)[:8]),
        expected="id, rule and prompt or messages; or the fields of GSM8K, IFEval, BFCL or a set of JSON schemas",
    )


def _own(row: Row, name: str) -> Item:
    try:
        return msgspec.convert(row, Item)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: item {row.get('id')}: {error}") from None


def _gsm8k(row: Row, number: int) -> Item:
    question = f"{row['question']}\nThink step by step. End with a line '#### ' and the number alone."
    answer = str(row["answer"]).rsplit("####", 1)[-1].strip()
    return Item(id=str(row.get("id", number)), rule="number", prompt=question, answer=answer, max_tokens=512)


def _ifeval(row: Row, number: int) -> Item | None:
    if any(name not in CHECKS for name in row["instruction_id_list"]):
        return None
    asked = [
        {"name": name, "arguments": arguments or {}}
        for name, arguments in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    fields = {"id": str(row.get("key", number)), "rule": "instructions", "prompt": row["prompt"]}
    return msgspec.convert(fields | {"instructions": asked, "max_tokens": 1280}, Item)


def _schema(row: Row, number: int) -> Item:
    prompt = f"Give one JSON value, and nothing else, that satisfies this JSON Schema:\n{json.dumps(row['schema'])}"
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": row["schema"]}}
    return Item(
        id=str(row.get("id", number)),
        rule="schema",
        prompt=prompt,
        schema=row["schema"],
        group=str(row.get("group", "")),
        body={"response_format": form},
        max_tokens=1024,
    )


def _bfcl(rows: Sequence[Row], name: str, path: Path | None) -> list[Item]:
    answers_path = path.with_name(f"{path.stem}_answers.jsonl") if path else None
    answers: dict[str, Any] = {}
    if answers_path and answers_path.is_file():
        answers = {row["id"]: row["ground_truth"] for row in _rows(_read(answers_path), answers_path.name)}
    rule = "calls" if answers else "no_call" if "irrelevance" in name else "tool_call"
    items = []
    for row in rows:
        accepted = [{_plain_name(n): a for n, a in call.items()} for call in answers.get(row["id"], ())]
        items.append(
            Item(
                id=str(row["id"]),
                rule=rule,
                messages=row["question"][0],
                answer=accepted if rule == "calls" else None,
                tools=[_tool(function) for function in row["function"]],
                max_tokens=512,
            )
        )
    return items


def _plain_name(name: str) -> str:
    """Function names of the OpenAI API hold no dots."""
    return name.replace(".", "_")


def _tool(function: Row) -> Row:
    described = {"name": _plain_name(function["name"]), "description": function.get("description", "")}
    return {"type": "function", "function": described | {"parameters": _json_schema(function.get("parameters", {}))}}


_TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "int": "integer", "bool": "boolean"}


def _json_schema(value: Any) -> Any:
    """The leaderboard's Python type names as JSON Schema's; "any" asks nothing."""
    if isinstance(value, list):
        return [_json_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    changed: dict[str, Any] = {}
    for key, each in value.items():
        if key == "type" and isinstance(each, str):
            if each != "any":
                changed[key] = _TYPES.get(each.lower(), each.lower())
        elif key == "properties" and isinstance(each, dict):  # its keys are names, not keywords
            changed[key] = {name: _json_schema(inner) for name, inner in each.items()}
        elif key in ("enum", "const", "default", "examples"):
            changed[key] = each
        else:
            changed[key] = _json_schema(each)
    return changed
