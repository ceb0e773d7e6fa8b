"""`/v1/internal/...`: what the operator asks and does. Behind the admin key, see `auth`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request

from paceline.contracts.decision import Decision
from paceline.server.errors import ERROR_RESPONSES, HttpError
from paceline.server.state import server_of
from paceline.server.telemetry.decision_words import in_words
from paceline.server.telemetry.observe import engine_stats
from paceline.server.tenancy.auth import admin_only

_NUMBER = re.compile(r"[0-9]{1,18}")


class UnknownRequestError(HttpError):
    status = 404
    code = "request_not_found"


router = APIRouter(
    prefix="/v1/internal", dependencies=[Depends(admin_only)], tags=["operator"], responses=ERROR_RESPONSES
)


@router.get("/config", summary="The resolved configuration, with group and reason of each option")
async def config(request: Request) -> dict[str, Any]:
    return server_of(request).report


@router.post("/reset_prefix_cache", summary="Forget every cached prefix")
async def reset_prefix_cache(request: Request) -> dict[str, bool]:
    """`unused` says whether nobody held a cached block just then; held ones are forgotten too, and free when they
    end."""
    return {"reset": True, "unused": await server_of(request).engine.reset_prefix_cache()}


@router.get("/decisions/{request_id}", summary="Why did this request wait")
async def decisions(request: Request, request_id: str) -> dict[str, Any]:
    """What the scheduler decided about a response's sequences, oldest first for each. `request_id` is the id in the
    response, or the engine's number of a sequence. Only the newest few thousand decisions are remembered; `data` is
    empty when there is none."""
    state = server_of(request)
    numbers = [int(request_id)] if _NUMBER.fullmatch(request_id) else state.calls.numbers_of(request_id)
    if not numbers:
        raise UnknownRequestError(
            "no recent request has this id",
            param="request_id",
            seen=request_id[:80],
            expected="the id of an answer (chatcmpl-..., cmpl-..., resp_... or msg_...) or a sequence's number",
        )
    found = [decision for number in numbers for decision in await state.engine.decisions(number)]
    return {"object": "list", "request_id": request_id, "sequences": numbers, "data": [_entry(d) for d in found]}


@router.get("/stats", summary="A look at the engine and the server")
async def stats(request: Request) -> dict[str, Any]:
    """`engine` is null while the engine gives no answer."""
    state = server_of(request)
    look = await engine_stats(state)
    session = state.engine
    return {
        "ready": session.ready,
        "why_not_ready": session.why_not_ready,
        "restarts": session.restarts,
        "phases": session.phases,
        "engine": None if look is None else msgspec.to_builtins(look),
        "tenants": msgspec.to_builtins(state.tenants.usage_now()),
        "usage_log": {
            "written": state.usage.num_written,
            "waiting": state.usage.num_kept,
            "lost": state.usage.num_lost,
            "errors": state.usage.num_errors,
        },
    }


def _entry(decision: Decision) -> dict[str, Any]:
    return {**msgspec.to_builtins(decision), "sentence": sentence(decision)}


def sentence(decision: Decision) -> str:
    """One sentence in plain English."""
    return f"Request {decision.request_id} {in_words(decision)}."
