"""Answers of a running server under the schemas of JSONSchemaBench: are they valid, and how many are cut?

    paceline serve -m smollm2-135m
    python benchmarks/external/structured_served.py DATA --url http://127.0.0.1:8000 [--num 100] [--temperature 0 1]

Data: structured/*_sample.jsonl
Needs: a running server

DATA is a folder with samples as JSON lines (see structured.py beside this). `--num` schemas, spread evenly over all,
are asked for with `response_format`, strict as they come. For each temperature it prints how many were refused, how
many answers ended by themselves and are valid by the `jsonschema` package (formats too), and which were cut (`length`):
a small model does not end every text, and what it says is not looked at. The exit status is 1 when an answer that
ended is not valid.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from jsonschema.validators import validator_for

PROMPT = "Write an example of data in JSON that keeps to this JSON schema, a short one:\n"
MAX_PROMPT_CHARS = 1500  # of the schema; the grammar has all of it


def schemas(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted(folder.glob("*_sample.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if isinstance(line["schema"], dict):
                found.append((str(line["id"]), line["schema"]))
    return found


def verdict(choice: dict[str, Any], schema: dict[str, Any]) -> str:
    if choice["finish_reason"] != "stop":
        return str(choice["finish_reason"])
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        value = json.loads(choice["message"]["content"])
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    except ValueError as error:
        return f"invalid: {error}"
    except jsonschema.ValidationError as error:
        return f"invalid: {error.json_path}: {error.message[:120]}"
    except Exception as error:  # a schema that the package cannot follow, a reference to elsewhere say
        return f"not judged: {type(error).__name__}"
    return "valid"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--num", type=int, default=100)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=8)
    how = parser.parse_args()
    every = schemas(how.data)
    if not every:
        parser.error(f"{how.data} has no *_sample.jsonl")
    asked = every[:: max(1, len(every) // how.num)][: how.num]
    wrong = 0
    with httpx.Client(base_url=how.url, timeout=600) as client, ThreadPoolExecutor(how.at_once) as pool:

        def ask(temperature: float, each: tuple[str, dict[str, Any]]) -> tuple[str, str]:
            name, schema = each
            content = PROMPT + json.dumps(schema)[:MAX_PROMPT_CHARS]
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            body = {"messages": [{"role": "user", "content": content}], "response_format": wanted, "seed": 1}
            more = {"temperature": temperature, "max_tokens": how.max_tokens}
            answer = client.post("/v1/chat/completions", json={**body, **more})
            if answer.status_code != 200:
                return name, f"refused: {answer.status_code} {answer.json()['error']['message'][:120]}"
            return name, verdict(answer.json()["choices"][0], schema)

        for temperature in how.temperature:
            begun = time.monotonic()
            results = list(pool.map(lambda each, t=temperature: ask(t, each), asked))
            counts = Counter(result.partition(":")[0] for _, result in results)
            wrong += counts["invalid"]
            shares = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
            print(f"temperature {temperature:g}: {len(asked)} asked in {time.monotonic() - begun:.0f} s: {shares}")
            for name, result in results:
                if result not in ("valid", "length"):
                    print(f"  {name}: {result}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
