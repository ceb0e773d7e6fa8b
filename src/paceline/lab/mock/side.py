"""Endpoints beside the two that make text: models, tokens, health, metrics, what an operator asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from paceline.lab.mock.asks import CHAT, COMPLETIONS, Refused
from paceline.lab.mock.metrics_text import metrics_text
from paceline.lab.mock.play import whole
from paceline.lab.mock.script import Flavour
from paceline.lab.mock.state import MockState
from paceline.lab.mock.wording import CREATED, encode
from paceline.lab.mock.words import chat_words, id_words, word_id

Answer = Callable[[MockState, bytes], bytes]


def answer(state: MockState, method: str, path: str, body: bytes, key: int) -> bytes:
    """A whole response; `Refused` with 404 for what this flavour does not have."""
    if path in (CHAT, COMPLETIONS):
        raise Refused(405, f"{path} takes POST", "method_not_allowed")
    table = {**_EVERYWHERE, **_OF[state.script.flavour]}
    found = table.get(path)
    if found is None and path.startswith("/v1/models/"):
        return _model(state, path.removeprefix("/v1/models/"))
    if found is None:
        raise Refused(404, f"there is no {path}", "not_found")
    wanted, function = found
    if method != wanted:
        raise Refused(405, f"{path} takes {wanted}", "method_not_allowed")
    if state.script.api_keys and key < 0 and path not in _OPEN:
        raise Refused(401, "no API key, or an unknown one", "invalid_api_key")
    return function(state, body)


_OPEN = ("/health", "/ready", "/version", "/metrics")


def _json(value: Any) -> bytes:
    return whole(200, encode(value))


# --- models


def _card(state: MockState, name: str) -> dict[str, Any]:
    script = state.script
    value: dict[str, Any] = {"id": name, "object": "model", "created": CREATED}
    match script.flavour:
        case Flavour.LLAMA_CPP:
            return value | {"owned_by": "llamacpp", "meta": {"n_ctx_train": script.max_model_len}}
        case Flavour.OPENAI:
            return value | {"owned_by": "organization-owner"}
        case _:
            owner = script.flavour.value
            return value | {"owned_by": owner, "root": name, "parent": None, "max_model_len": script.max_model_len}


def _models(state: MockState, _: bytes) -> bytes:
    return _json({"object": "list", "data": [_card(state, name) for name in state.script.models]})


def _model(state: MockState, name: str) -> bytes:
    if name not in state.script.models:
        raise Refused(404, f"no model {name[:80]!r}", "model_not_found", "model")
    return _json(_card(state, name))


# --- tokens


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not right: {error}", "invalid_request") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body is an object", "invalid_request")
    return value


def _words(state: MockState, value: dict[str, Any]) -> list[str]:
    if isinstance(value.get("messages"), list):
        return chat_words(value["messages"], "", state.script.template_tokens)
    prompt = value.get("prompt")
    if not isinstance(prompt, str):
        raise Refused(400, "a prompt or messages are needed", "invalid_request", "prompt")
    return prompt.split()


def _tokenize(state: MockState, body: bytes) -> bytes:
    ids = [word_id(word) for word in _words(state, _object(body))]
    length = state.script.max_model_len
    return _json({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None})


def _detokenize(_: MockState, body: bytes) -> bytes:
    tokens = _object(body).get("tokens")
    if not isinstance(tokens, list):
        raise Refused(400, "tokens is a list of ids", "invalid_request", "tokens")
    return _json({"prompt": " ".join(id_words(tokens))})


def _tokenize_content(_: MockState, body: bytes) -> bytes:
    content = _object(body).get("content")
    return _json({"tokens": [word_id(word) for word in str(content or "").split()]})


def _apply_template(state: MockState, body: bytes) -> bytes:
    messages = _object(body).get("messages")
    if not isinstance(messages, list):
        raise Refused(400, "messages is a list", "invalid_request", "messages")
    return _json({"prompt": " ".join(chat_words(messages, "", state.script.template_tokens))})


# --- health, metrics, the operator


def _healthy(state: MockState, _: bytes) -> bytes:
    return _json({"status": "ok"}) if state.script.flavour is Flavour.LLAMA_CPP else whole(200, b"", kind="text/plain")


def _ready(state: MockState, _: bytes) -> bytes:
    return _json({"ready": True, "reason": "", "phase": "", "open_requests": len(state.open)})


def _version(state: MockState, _: bytes) -> bytes:
    return _json({"version": state.script.version})


def _props(state: MockState, _: bytes) -> bytes:
    return _json(
        {
            "default_generation_settings": {"n_ctx": state.script.max_model_len},
            "total_slots": _slots(state),
            "model_path": state.script.models[0],
            "build_info": state.script.version,
        }
    )


def _slots(state: MockState) -> int:
    return max((service.service.slots or 1 for service in state.services), default=1)


def _metrics(state: MockState, _: bytes) -> bytes:
    return whole(200, metrics_text(state).encode(), kind="text/plain; version=0.0.4; charset=utf-8")


def _config(state: MockState, _: bytes) -> bytes:
    return _json(state.script.config)


def _reset(state: MockState, _: bytes) -> bytes:
    state.forget_prefixes()
    return _json({"reset": True, "unused": not state.open})


_EVERYWHERE: dict[str, tuple[str, Answer]] = {"/v1/models": ("GET", _models)}
_TOKENS: dict[str, tuple[str, Answer]] = {"/tokenize": ("POST", _tokenize), "/detokenize": ("POST", _detokenize)}
_OF: dict[Flavour, dict[str, tuple[str, Answer]]] = {
    Flavour.PACELINE: _TOKENS
    | {
        "/health": ("GET", _healthy),
        "/ready": ("GET", _ready),
        "/version": ("GET", _version),
        "/metrics": ("GET", _metrics),
        "/v1/internal/config": ("GET", _config),
        "/v1/internal/reset_prefix_cache": ("POST", _reset),
    },
    Flavour.VLLM: _TOKENS
    | {
        "/health": ("GET", _healthy),
        "/version": ("GET", _version),
        "/metrics": ("GET", _metrics),
        "/reset_prefix_cache": ("POST", _reset),
    },
    Flavour.LLAMA_CPP: {
        "/health": ("GET", _healthy),
        "/props": ("GET", _props),
        "/metrics": ("GET", _metrics),
        "/tokenize": ("POST", _tokenize_content),
        "/apply-template": ("POST", _apply_template),
    },
    Flavour.OPENAI: {},
}
