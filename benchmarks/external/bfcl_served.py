"""Required tool calls of a running server on functions of the Berkeley Function-Calling Leaderboard (BFCL).

    paceline serve -m smollm2-135m
    python benchmarks/external/bfcl_served.py DATA --url http://127.0.0.1:8000 [--num 400] [--temperature 0 1]

DATA is a folder with BFCL files (see bfcl.py beside this). `--num` questions, spread evenly over all, are asked with
`tool_choice: required` at each temperature. For each, it prints how many answers ended by themselves, how many of those
have nothing but calls of the functions offered with arguments that their schemas allow, and which were cut (`length`).
What the calls say is not looked at. The exit status is 1 when a call that ended is not valid, or when more than 2 %
were cut.

Data: tools/*_answers.jsonl
Needs: a running server
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from bfcl import as_json_schema

MAX_CUT = 0.02  # of the answers


def questions(folder: Path) -> list[tuple[str, list[Any], list[dict[str, Any]]]]:
    """Name, messages and tools of each question of one turn."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem.endswith("_answers"):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if len(row["question"]) == 1 and row.get("function"):
                found.append((str(row["id"]), row["question"][0], [tool(each) for each in row["function"]]))
    return found


def tool(function: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9_./:\-]", "_", function["name"])
    parameters = as_json_schema(function.get("parameters") or {})
    described = {"name": name, "description": function.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": described}


def verdict(choice: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    if choice["finish_reason"] != "tool_calls":
        return str(choice["finish_reason"])
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    calls = choice["message"].get("tool_calls") or []
    for call in calls:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if name not in schemas or not jsonschema.Draft202012Validator(schemas[name]).is_valid(arguments):
            return "invalid"
    return "valid" if calls and not choice["message"]["content"] else "invalid"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--num", type=int, default=400)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=8)
    how = parser.parse_args()
    every = questions(how.data)
    asked = every[:: max(1, len(every) // how.num)][: how.num]
    wrong = 0
    with httpx.Client(base_url=how.url, timeout=600) as client, ThreadPoolExecutor(how.at_once) as pool:

        def ask(temperature: float, question: tuple[str, list[Any], list[dict[str, Any]]]) -> tuple[str, str]:
            name, messages, tools = question
            body = {"messages": messages, "tools": tools, "tool_choice": "required", "temperature": temperature}
            answer = client.post("/v1/chat/completions", json={**body, "max_tokens": how.max_tokens, "seed": 1})
            if answer.status_code != 200:
                error = answer.json()["error"]
                return name, f"refused: {error['param']}: {error['message'][:120]}"
            return name, verdict(answer.json()["choices"][0], tools)

        for temperature in how.temperature:
            begun = time.monotonic()
            results = list(pool.map(lambda each, t=temperature: ask(t, each), asked))
            counts = Counter(result.partition(":")[0] for _, result in results)
            wrong += counts["invalid"] + (counts["length"] > MAX_CUT * len(asked))
            shares = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
            print(f"temperature {temperature:g}: {len(asked)} asked in {time.monotonic() - begun:.0f} s: {shares}")
            for name, result in results:
                if result != "valid":
                    print(f"  {name}: {result}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
