"""A chat that was asked for in another form: from its checked body to a generation, by the chat's own path."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import Request

from paceline.server.api.calls import arrival_of, request_id_of
from paceline.server.api.chat import prepare_chat
from paceline.server.api.protocol.renamed import in_words_of, renamed
from paceline.server.state import server_of

if TYPE_CHECKING:
    from paceline.server.api.generation import Generation
    from paceline.server.api.protocol.shared import SharedFields
    from paceline.server.tenancy.tenants import Tenant


async def prepare_translated(
    request: Request, tenant: Tenant, body: SharedFields, *, prefix: str, prompt_param: str
) -> Generation:
    """The generation, not started. Its id is `prefix` and the request's. Raises what `prepare_chat` raises, in the
    words of the body, and so does its start for a grammar."""
    with in_words_of(body.NAMES):
        generation = await prepare_chat(
            server_of(request),
            tenant,
            body.chat,
            arrival=arrival_of(request),
            request_id=f"{prefix}{request_id_of(request, body.request_id)}",
            prompt_param=prompt_param,
        )
    if (grammar := generation.ask.grammar) is not None:
        places = tuple(place and renamed(place, body.NAMES) for place in grammar.places)
        named = replace(grammar, param=renamed(grammar.param, body.NAMES), places=places)
        generation.ask = replace(generation.ask, grammar=named)
    return generation
