"""Prompts of a user's own file: JSON lines with `prompt`, `text` or `messages`, or text with one prompt a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import ConfigError

_MAX_BYTES = 64 * 2**20


def read_prompts(file: str) -> list[list[dict[str, Any]]]:
    """Each prompt as chat messages. ConfigError: cannot be read, too big, no prompt, or a line of another form."""
    path = Path(file)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError("the file of prompts is too big", seen=str(path), expected="64 MiB at most")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the file of prompts cannot be read", seen=f"{path}: {error}") from None
    is_json = path.suffix in (".jsonl", ".ndjson", ".json")
    prompts = [
        _messages(line, path, number) if is_json else [{"role": "user", "content": line}]
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise ConfigError("the file of prompts is empty", seen=str(path))
    return prompts


def _messages(line: str, path: Path, number: int) -> list[dict[str, Any]]:
    try:
        item = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}, line {number} is not JSON", seen=str(error)) from None
    found = item if isinstance(item, dict) else {}
    messages = found.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(m, dict) and "content" in m for m in messages):
        return messages
    text = found.get("prompt", found.get("text"))
    if isinstance(text, str) and text:
        return [{"role": "user", "content": text}]
    # the line itself stays out of the message: it is a user's text
    raise ConfigError(
        f"{path}, line {number} has no prompt",
        seen=", ".join(map(str, found))[:80] or type(item).__name__,
        expected="prompt, text or messages",
    )
