"""Tool-call formats on the accepted answers of the Berkeley Function-Calling Leaderboard (BFCL), without a model.

    python benchmarks/external/bfcl.py DATA [--grammar [--model smollm2-135m]]

Data: tools/*_answers.jsonl

DATA is a folder with BFCL files as JSON lines: `NAME.jsonl` (questions with functions) and `NAME_answers.jsonl` (lists
of accepted calls; each argument is a list of values that are accepted, "" among them when it may be left out). For each
question, as many answers are made as any argument has values, so that each value occurs, and one with only what must be
there. Each answer is written in each format, read back in random portions, and compared.

`--grammar` also asks: do the functions of each question compile to a grammar, as `tool_choice: required` needs, and
are the answers allowed, token by token? Not in `pythonic` (a grammar has JSON within values there) nor `qwen3_coder`
(whose grammar is that of `hermes`).

Some accepted answers do not satisfy the function's own schema: another type, a date in another form, an argument that
it does not describe. They are read back all the same, but `qwen3_coder`, which takes types from the schema, may read
another value; grammars are not asked about them. The exit status is 1 when anything else goes wrong. Counts are of the
samples given.

Data: tools/*_answers.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from paceline.assemble.files import find_files
from paceline.config import EngineConfig, read_environment
from paceline.config.tree import ModelConfig
from paceline.errors import RequestError
from paceline.text import TextTokenizer, load_tokenizer
from paceline.text.grammar import GrammarCompiler, encode_spec
from paceline.text.grammar.compiler import LLGrammar
from paceline.text.tools import FORMATS, ToolCall, ToolSpec, call_grammar, collect, make_parser, serialise
from paceline.text.tools.schemas import narrowed

CHECK = jsonschema.Draft202012Validator
ENFORCED = [name for name in FORMATS if name not in ("pythonic", "qwen3_coder")]
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None, "HashMap": "object", "long": "integer"}


def as_json_schema(schema: Any) -> Any:
    """BFCL names types as Python does. Every `type` that is a text is one: properties of that name are objects."""
    if isinstance(schema, list):
        return [as_json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: as_json_schema(item) for key, item in schema.items() if key not in ("optional", "default")}
    if isinstance(schema.get("type"), str):
        kind = TYPES.get(schema["type"], schema["type"])
        changed.pop("type")
        changed |= {} if kind is None else {"type": kind}
    if isinstance(changed.get("enum"), list) and not changed["enum"]:
        changed.pop("enum")
    return changed


def pick(accepted: Any, place: int) -> Any:
    """A value out of a list of accepted ones; within objects, members are lists of accepted ones again."""
    value = accepted[min(place, len(accepted) - 1)] if isinstance(accepted, list) and accepted else accepted
    return inner(value, place)


def inner(value: Any, place: int) -> Any:
    if isinstance(value, dict):
        chosen = {key: pick(item, place) if isinstance(item, list) else item for key, item in value.items()}
        return {key: item for key, item in chosen.items() if item != ""}
    if isinstance(value, list):
        return [inner(item, place) for item in value]
    return value


def answers(truth: list[dict[str, Any]], functions: dict[str, Any]) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Answers made of the accepted values, arguments in the order of the schema."""
    most = max((len(v) for call in truth for args in call.values() for v in args.values()), default=1)
    for place in range(max(most, 1)):
        yield [(name, ordered(name, args, functions, place)) for call in truth for name, args in call.items()]
    yield [
        (name, ordered(name, {k: v for k, v in args.items() if "" not in v}, functions, 0))
        for call in truth
        for name, args in call.items()
    ]


def ordered(name: str, arguments: dict[str, Any], functions: dict[str, Any], place: int) -> dict[str, Any]:
    chosen = {key: pick(value, place) for key, value in arguments.items()}
    chosen = {key: value for key, value in chosen.items() if not (value == "" and "" in arguments[key])}
    arranged: dict[str, Any] = in_order(chosen, functions.get(name, {}))
    return arranged


def in_order(value: Any, schema: Any) -> Any:
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        keys = [key for key in properties if key in value] + [key for key in value if key not in properties]
        return {key: in_order(value[key], properties.get(key, {})) for key in keys}
    if isinstance(value, list):
        return [in_order(item, schema.get("items", {}) if isinstance(schema, dict) else {}) for item in value]
    return value


def reads_back(format: str, calls: list[ToolCall], tools: list[ToolSpec], chance: random.Random) -> bool:
    text = serialise(format, calls)
    parser = make_parser(format, tools)
    events = []
    while text:
        size = chance.randint(1, 12)
        events += parser.feed(text[:size])
        text = text[size:]
    parsed = collect([*events, *parser.finish()])
    if parsed.text.strip() or len(parsed.calls) != len(calls):
        return False
    return all(
        got.name == call.name and same(json.loads(got.arguments), json.loads(call.arguments))
        for got, call in zip(parsed.calls, calls, strict=True)
    )


def same(a: Any, b: Any) -> bool:
    """Equal with equal types: 1 is not 1.0, nor true."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def is_valid(calls: list[ToolCall], functions: dict[str, Any]) -> bool:
    return all(
        call.name in functions
        and CHECK(narrowed(functions[call.name]), format_checker=CHECK.FORMAT_CHECKER).is_valid(
            json.loads(call.arguments)
        )
        for call in calls
    )


def allows(grammar: LLGrammar, ids: list[int]) -> bool:
    one = grammar.clone()
    return all(one.accept(index) for index in ids) and one.accepting


def examine(path: Path, compiler: GrammarCompiler | None, tokenizer: TextTokenizer | None) -> bool:
    """Print the counts of one file; is all of it well?"""
    questions = {line["id"]: line for line in lines(path.with_name(path.name.replace("_answers", "")))}
    count: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {name: [] for name in FORMATS}
    refused: list[str] = []
    barred: list[str] = []
    chance = random.Random(0)
    for line in lines(path):
        question = questions.get(line["id"])
        if question is None:  # samples may have answers without their question
            count["without question"] += 1
            continue
        functions = {each["name"]: as_json_schema(each["parameters"]) for each in question["function"]}
        tools = [ToolSpec(each["name"], each["description"], functions[each["name"]]) for each in question["function"]]
        count["questions"] += 1
        grammars = compile_all(compiler, tools, line["id"], refused)
        for answer in answers(line["ground_truth"], functions):
            calls = [ToolCall(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in answer]
            valid = is_valid(calls, functions)
            count["answers"] += 1
            count["calls"] += len(calls)
            count["schema-valid answers"] += valid
            for format in FORMATS:
                if not reads_back(format, calls, tools, chance):
                    wrong[format].append(f"{line['id']}{'' if valid else ' (its schema refuses it)'}")
            for format in ENFORCED if valid and tokenizer is not None else ():
                count["asked of grammars"] += 1
                ids = tokenizer.encode(serialise(format, calls), add_special=False)  # type: ignore[union-attr]
                if format not in grammars or not allows(grammars[format], ids):
                    barred.append(f"{line['id']} in {format}")
    print(f"\n{path.name}: " + ", ".join(f"{number} {what}" for what, number in count.items()))
    for format, ids in wrong.items():
        print(f"  {format:14} read back {count['answers'] - len(ids)}/{count['answers']}")
        for each in dict.fromkeys(ids):
            print(f"    not: {each}")
    if compiler is not None:
        print(f"  grammars refused: {len(refused)}; answers they do not allow: {len(barred)}")
        for each in dict.fromkeys([*refused, *barred]):
            print(f"    not: {each}")
    return not barred and not any("refuses" not in each for ids in wrong.values() for each in ids)


def compile_all(
    compiler: GrammarCompiler | None, tools: list[ToolSpec], name: str, refused: list[str]
) -> dict[str, LLGrammar]:
    grammars = {}
    for format in ENFORCED if compiler is not None else ():
        try:
            grammars[format] = compiler.compile(encode_spec(call_grammar(format, tools)))  # type: ignore[union-attr]
        except RequestError as error:
            refused.append(f"{name} in {format}: {error}")
    return grammars


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--grammar", action="store_true", help="also compile grammars, and follow the answers in them")
    parser.add_argument("--model", default="smollm2-135m", help="whose vocabulary grammars are followed with")
    options = parser.parse_args()
    paths = sorted(options.data.glob("*_answers.jsonl"))
    if not paths:
        parser.error(f"{options.data} has no *_answers.jsonl")
    compiler = tokenizer = None
    if options.grammar:
        tokenizer = load_tokenizer(find_files(EngineConfig(model=ModelConfig(model=options.model)), read_environment()))
        eos = list(tokenizer.eos_token_ids)
        compiler = GrammarCompiler.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=eos)
    results = [examine(path, compiler, tokenizer) for path in paths]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
