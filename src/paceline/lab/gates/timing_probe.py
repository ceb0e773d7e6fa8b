"""Can one tenant tell, by timing, what another has asked? Asks a server with two tenants' keys.

Each prompt is drawn anew, long enough for a hit to matter, and answered with one token, so that the whole call is the
time to the first token. Run it against a quiet server: other load is noise, which makes it see less, not more.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Any

import httpx

from paceline.errors import ConfigError, LabError
from paceline.lab.gates.probe_result import ARMS, ProbeResult

_WARMUP = 2  # rounds whose times are dropped
_MOST_FAILED = 5
_TEXT = """
amber basin cedar delta ember fable grove harbor island juniper kettle ledger meadow nectar orchard pebble quarry
river saddle timber umbrella valley willow yonder zephyr anchor bramble candle drift engine feather garden hollow
ivory jacket kernel lantern marble needle oyster pillar quiver ribbon silver thunder upland velvet window
"""
_WORDS = _TEXT.split()


def probe_prefix_timing(
    url: str,
    key_a: str,
    key_b: str,
    *,
    model: str | None = None,
    num_rounds: int = 40,
    num_words: int = 600,
    seed: int = 0,
    timeout_s: float = 120.0,
    on_round: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Seconds by arm. `num_words`: of each prompt. Raises ConfigError for equal keys, LabError for a server that
    refuses either."""
    if key_a == key_b:
        raise ConfigError("the probe needs the keys of two tenants", seen="one key twice")
    with httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=timeout_s, trust_env=False) as client:
        name = model or _first_model(client, key_a)
        asker = _Asker(client, name, {"A": key_a, "B": key_b})
        # a salt of this probe alone: a prompt must be new to the server, not only to this run
        draw = random.Random(f"timing-probe:{seed}:{secrets.token_hex(8)}")
        result = ProbeResult(model=name)
        times: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for index in range(_WARMUP + num_rounds):
            found = _round(asker, draw, num_words)
            if on_round is not None:
                on_round(index + 1, _WARMUP + num_rounds)
            if found is None:
                result.num_failed += 1
                if result.num_failed > _MOST_FAILED and result.num_failed > num_rounds // 4:
                    raise LabError("too many of the probe's calls failed", seen=asker.last_error)
                continue
            if index < _WARMUP:
                continue
            for arm in ARMS:
                seconds, cached = found[arm]
                times[arm].append(seconds)
                if cached is not None:
                    result.cached_tokens[arm] = result.cached_tokens.get(arm, 0) + cached
        result.control_s, result.test_s, result.own_s = (times[arm] for arm in ARMS)
        result.prompt_tokens = asker.prompt_tokens
        return result


class _Asker:
    def __init__(self, client: httpx.Client, model: str, keys: dict[str, str]) -> None:
        self._client = client
        self._model = model
        self._keys = keys
        self.prompt_tokens = 0
        self.last_error = ""

    def ask(self, tenant: str, prompt: str) -> tuple[float, int | None]:
        """(seconds, cached tokens as usage tells). Raises LabError."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0}
        began = time.perf_counter()
        try:
            answer = self._client.post(
                "/v1/completions", json=body, headers={"Authorization": f"Bearer {self._keys[tenant]}"}
            )
        except httpx.HTTPError as error:
            self.last_error = type(error).__name__
            raise LabError("a call of the probe failed", seen=self.last_error) from None
        seconds = time.perf_counter() - began
        if answer.status_code in (401, 403):
            raise ConfigError("the server refuses a tenant's key", seen=f"HTTP {answer.status_code}, tenant {tenant}")
        if answer.status_code != 200:
            self.last_error = f"HTTP {answer.status_code}"
            raise LabError("a call of the probe failed", seen=self.last_error)
        usage = _usage(answer)
        self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return seconds, None if cached is None else int(cached)


def _usage(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()["usage"]
    except (ValueError, KeyError, TypeError):  # told of nothing, or not in JSON
        return {}
    return found if isinstance(found, dict) else {}


def _round(asker: _Asker, draw: random.Random, num_words: int) -> dict[str, tuple[float, int | None]] | None:
    """One of each arm, in random order; None if a call failed. In `control` A asks too, something else: the server has
    done the same work before each measured call."""
    found: dict[str, tuple[float, int | None]] = {}
    try:
        for arm in draw.sample(ARMS, len(ARMS)):
            prompt = _prompt(draw, num_words)
            asker.ask("A", _prompt(draw, num_words) if arm == "control" else prompt)
            found[arm] = asker.ask("A" if arm == "own" else "B", prompt)
    except LabError:
        return None
    return found


def _prompt(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(num_words))


def _first_model(client: httpx.Client, key: str) -> str:
    try:
        answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise LabError("the server lists no model", seen=type(error).__name__, fix="name one with --model") from None
