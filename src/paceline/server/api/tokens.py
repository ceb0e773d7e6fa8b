"""/tokenize, /detokenize and /tokenizer_info: what a prompt becomes, and what ids say. Answers are those of vLLM."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from paceline.errors import RequestError
from paceline.server.api.calls import check_model, encode_messages, encode_text, token_texts
from paceline.server.api.protocol import DetokenizeRequest, TokenizeRequest, read_body, request_schema
from paceline.server.api.sse import encode
from paceline.server.errors import ERROR_RESPONSES
from paceline.server.state import server_of
from paceline.server.tenancy.auth import tenant_of
from paceline.text import TextTokenizer

router = APIRouter(tags=["tokens"], dependencies=[Depends(tenant_of)], responses=ERROR_RESPONSES)


def _json(value: dict[str, Any]) -> Response:
    return Response(encode(value), media_type="application/json")


@router.post("/tokenize", openapi_extra=request_schema(TokenizeRequest), response_class=Response)
async def tokenize(request: Request) -> Response:
    """The ids that the model would be given for a prompt or a conversation."""
    state = server_of(request)
    body = await read_body(request, TokenizeRequest, state.engine.text)
    check_model(state, body.model)
    body.check()
    if body.messages is not None:
        ids = (await encode_messages(state, body, add_special=bool(body.add_special_tokens))).tolist()
    else:
        ids = await encode_text(state, body.prompt or "", add_special=body.add_special_tokens is not False)
    texts = await state.engine.text(token_texts, state.pipeline, ids) if body.return_token_strs else None
    return _json({"count": len(ids), "max_model_len": state.model.max_model_len, "tokens": ids, "token_strs": texts})


@router.post("/detokenize", openapi_extra=request_schema(DetokenizeRequest), response_class=Response)
async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens written out."""
    state = server_of(request)
    body = await read_body(request, DetokenizeRequest, state.engine.text)
    check_model(state, body.model)
    text = await state.engine.text(_decode, state.pipeline.tokenizer, body.tokens)
    return _json({"prompt": text})


def _decode(tokenizer: TextTokenizer, ids: list[int]) -> str:
    """In the text thread: there may be millions of ids."""
    size = tokenizer.vocab_size
    bad = next((i for i in ids if not 0 <= i < size), None)
    if bad is not None:
        raise RequestError(
            "tokens names a token id outside the vocabulary", param="tokens", seen=bad, expected=f"0 to {size - 1}"
        )
    text: str = tokenizer.decode(ids, skip_special=False)
    return text


@router.get("/tokenizer_info", response_class=Response)
async def tokenizer_info(request: Request) -> Response:
    """Size and special tokens of the vocabulary. The chat template is not among it: see /tokenize for conversations."""
    state = server_of(request)
    tokenizer = state.pipeline.tokenizer
    names = {f"{role}_token": None for role in ("bos", "eos", "pad", "unk")} | tokenizer.special_tokens
    size = {"vocab_size": tokenizer.vocab_size, "max_model_len": state.model.max_model_len}
    return _json({**names, "eos_token_ids": list(tokenizer.eos_token_ids), **size})
