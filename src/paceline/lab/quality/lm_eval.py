"""The lm-evaluation-harness through the server's endpoints, where it is installed. It is no dependency of paceline.

It runs as a program of its own (`python -m lm_eval`) with the local-completions or local-chat-completions model, and
its samples become a `SetScore`, so that two nodes pair item by item as with our own sets. Tasks that compare log
likelihoods need a server that tells those of a prompt (see `distributions`), and a tokenizer the harness can load.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import LabError, UnsupportedError
from paceline.lab.quality.score import ItemScore, SetScore

_METRICS = ("exact_match", "acc", "acc_norm", "prompt_level_strict_acc", "pass@1", "em")  # the first that is there


def run_lm_eval(
    url: str,
    model: str,
    tasks: Sequence[str],
    out: Path,
    *,
    form: str = "completions",
    limit: int | None = None,
    tokenizer: str | None = None,
    include_path: Path | None = None,
    num_concurrent: int = 8,
    python: str | None = None,
    api_key: str | None = None,
    environment: dict[str, str] | None = None,
) -> list[SetScore]:
    """One score for each task, items in the order of the harness. `python`: the interpreter that has the harness.
    Raises UnsupportedError where it is not installed, LabError where it fails."""
    if python is None:
        require_installed()
    base = url.rstrip("/").removesuffix("/v1")
    endpoint = "/v1/chat/completions" if form == "chat" else "/v1/completions"
    arguments = {
        "model": model,
        "base_url": base + endpoint,
        "num_concurrent": num_concurrent,
        "max_retries": 1,
        "tokenizer_backend": "huggingface" if tokenizer else "none",
        "tokenized_requests": False,
    } | ({"tokenizer": tokenizer} if tokenizer else {})
    command = [python or sys.executable, "-m", "lm_eval"]
    command += ["--model", "local-chat-completions" if form == "chat" else "local-completions"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--tasks", ",".join(tasks), "--output_path", str(out), "--log_samples", "--seed", "0"]
    command += ["--apply_chat_template"] if form == "chat" else []
    command += ["--limit", str(limit)] if limit is not None else []
    command += ["--include_path", str(include_path)] if include_path is not None else []
    environment = dict(os.environ) if environment is None else environment
    if api_key:
        environment = environment | {"OPENAI_API_KEY": api_key}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise LabError(
            "lm_eval failed", seen=(done.stderr or done.stdout).strip()[-500:], fix="run the command by hand"
        )
    return [read_samples(task, out, model) for task in tasks]


def require_installed() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise UnsupportedError(
            "lm_eval is not installed here",
            expected="the lm-evaluation-harness, with its API extra",
            fix="pip install 'lm-eval[api]', or name an interpreter that has it with --python",
        )


def read_samples(task: str, out: Path, model: str) -> SetScore:
    """The newest samples of a task below `out`. Raises LabError if there are none."""
    name = re.compile(rf"samples_{re.escape(task)}_\d{{4}}(-\d\d-\d\dT.*)?\.jsonl")  # gsm8k is not gsm8k_cot
    found = [path for path in out.rglob("samples_*.jsonl") if name.fullmatch(path.name)]
    files = sorted(found, key=lambda path: path.stat().st_mtime)
    if not files:
        raise LabError(f"lm_eval left no samples of {task}", seen=str(out))
    rows = [json.loads(line) for line in files[-1].read_text("utf-8").splitlines() if line.strip()]
    items = tuple(_items(rows, task))
    if not items:
        raise LabError(f"the samples of {task} hold no item", seen=str(files[-1]))
    asked = hashlib.sha256("".join(str(row.get("doc_hash", row.get("doc_id"))) for row in rows).encode()).hexdigest()
    return SetScore(
        set=task, set_sha256=asked, source="lm-eval", model=model, form="lm-eval", items=items, notes=("by lm-eval",)
    )


def _items(rows: Iterable[dict[str, Any]], task: str) -> Iterable[ItemScore]:
    """A task may be scored through several filters: the first one of an item counts."""
    seen: set[str] = set()
    for row in rows:
        name = str(row["doc_id"])
        if name in seen:
            continue
        seen.add(name)
        metric = next((each for each in _METRICS if each in row), None)
        if metric is None:
            raise LabError(
                f"task {task} has no score of right or wrong",
                seen=", ".join(sorted(row)),
                expected=" or ".join(_METRICS),
            )
        digest = hashlib.sha256(json.dumps(row.get("resps")).encode()).hexdigest()
        yield ItemScore(id=name, right=float(row[metric]) >= 0.5, output_sha256=digest)
