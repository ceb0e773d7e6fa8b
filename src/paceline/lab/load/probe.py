"""Finds out what a server is and can do, with a handful of small calls and without being told.

First who it is: `owned_by` of its models, then endpoints that only one kind has. Then what it can, by trying: a short
answer with an exact length, streamed, says whether lengths can be forced, how tokens are counted per chunk, whether
usage comes and tells of cached tokens; three token ids say whether prompts may be ids. Calls that a server refuses are
tried again with less. It asks for some 60 tokens in all and changes nothing but the server's prefix cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from paceline.contracts.artefact import TargetInfo
from paceline.errors import LabError
from paceline.lab.load.abilities import Abilities, try_answers, try_token_ids, try_tokenize
from paceline.lab.load.control import Control
from paceline.lab.load.target import Target, parse_url

EXACT_KINDS = ("paceline", "vllm", "llama.cpp", "sglang")  # they honour ignore_eos
SALT_KINDS = ("paceline", "vllm")
RESET_PATHS = {
    "paceline": "/v1/internal/reset_prefix_cache",
    "vllm": "/reset_prefix_cache",  # there in its development mode
    "sglang": "/flush_cache",
}
LOOK_S = 0.5  # between two looks at a server that is loading
OWNERS = {"paceline": "paceline", "vllm": "vllm", "llamacpp": "llama.cpp", "llama.cpp": "llama.cpp", "sglang": "sglang"}


async def probe(
    url: str,
    api_key: str | None = None,
    model: str | None = None,
    timeout_s: float = 120.0,
    *,
    headers: dict[str, str] | None = None,
    tenant_keys: dict[str, str] | None = None,
    ca_file: str | None = None,
    verify_tls: bool = True,
    wait_ready_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Target:
    """The server at `url`, as a target. `model` None takes the only one, or the first. `wait_ready_s`: how long one may
    take to be ready that answers 503; `on_wait` is told once.

    Raises LabError when nothing answers, the key is refused, the model is unknown, or no answer can be had at all;
    ConfigError for a URL that cannot be read. `timeout_s` is for each call: the first answer of a cold server is slow.
    """
    address = parse_url(url)
    control = Control(
        address, api_key=api_key, headers=headers, ca_file=ca_file, verify_tls=verify_tls, timeout_s=timeout_s
    )
    async with control:
        card = await _find_model(control, model, wait_ready_s, on_wait)
        name = str(card["id"])
        kind = await _find_kind(control, card)
        version, max_model_len = await _describe(control, kind, card)
        can = Abilities(kind=kind, model=name)
        await try_answers(control, can)
        await try_token_ids(control, can)
        tokenize = await try_tokenize(control, name)
        info = TargetInfo(
            url=address.base_url,
            model=name,
            kind=kind,
            version=version,
            max_model_len=max_model_len,
            tokenize=tokenize,
            token_ids=can.token_ids,
            ignore_eos=can.exact and (kind in EXACT_KINDS or can.exact_shown),
            chunk_usage=bool(can.chunk_counts),
            final_usage=can.final_usage,
            cached_tokens=can.cached_tokens,
            reset_prefix_cache=await _find_reset(control, kind),
            cache_salt=kind in SALT_KINDS,
            timings=can.timings,
        )
    return Target(
        info=info,
        api_key=api_key,
        tenant_keys=dict(tenant_keys or {}),
        headers=dict(headers or {}),
        ca_file=ca_file,
        verify_tls=verify_tls,
        chunk_counts=can.chunk_counts,
        max_tokens_field=can.max_tokens_field,
        stream_options=can.stream_options,
    )


async def _find_model(
    control: Control, model: str | None, wait_ready_s: float, on_wait: Callable[[str], None]
) -> dict[str, Any]:
    """The model's card."""
    reply, until = await control.get("/v1/models"), time.monotonic() + wait_ready_s
    if reply.status == 503 and wait_ready_s > 0:
        on_wait(f"the server is not ready; waiting for it, {wait_ready_s:g} s at the most ({reply.words})")
    while reply.status == 503 and time.monotonic() < until:
        await asyncio.sleep(LOOK_S)
        reply = await control.get("/v1/models")
    if reply.status in (401, 403):
        raise LabError("the server refuses the API key", seen=reply.words, fix="pass its key")
    cards = [card for card in reply.object.get("data") or [] if isinstance(card, dict) and card.get("id")]
    if not cards:
        if model is not None:
            return {"id": model}  # some gateways list nothing
        raise LabError(
            "the server names no model",
            seen=f"{control.address.base_url}/v1/models: {reply.words}",
            expected="an OpenAI-compatible server",
            fix="give the model's name, or the right URL",
        )
    if model is None:
        return cards[0]
    found = next((card for card in cards if card["id"] == model), None)
    if found is None:
        names = ", ".join(str(card["id"]) for card in cards[:10])
        raise LabError("the server does not have this model", seen=model, expected=names)
    return found


async def _find_kind(control: Control, card: dict[str, Any]) -> str:
    owner = str(card.get("owned_by") or "").lower()
    if owner in OWNERS:
        return OWNERS[owner]
    if "default_generation_settings" in (await control.get("/props")).object:
        return "llama.cpp"
    if "model_path" in (await control.get("/get_model_info")).object:
        return "sglang"
    return "openai"


async def _describe(control: Control, kind: str, card: dict[str, Any]) -> tuple[str, int | None]:
    """Version and the model's length."""
    length = _whole(card.get("max_model_len"))
    if kind == "llama.cpp":
        props = (await control.get("/props")).object
        settings = props.get("default_generation_settings")
        slot = settings.get("n_ctx") if isinstance(settings, dict) else None
        meta = card.get("meta")
        trained = meta.get("n_ctx_train") if isinstance(meta, dict) else None
        return str(props.get("build_info") or ""), length or _whole(slot) or _whole(trained)
    if kind == "sglang":
        info = (await control.get("/get_server_info")).object
        return str(info.get("version") or ""), length
    if kind == "openai":
        return "", length
    return str((await control.get("/version")).object.get("version") or ""), length


async def _find_reset(control: Control, kind: str) -> str:
    """The call that forgets cached prefixes, found without calling it."""
    path = RESET_PATHS.get(kind, "")
    if kind == "paceline":  # an operator's call: open to this key?
        return path if (await control.get("/v1/internal/config")).ok else ""
    if kind == "vllm":
        return path if (await control.get(path)).status == 405 else ""  # only POST: it is there
    return path


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
