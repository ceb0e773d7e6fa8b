"""What a load is: SLO classes, the requests a plan holds, and what an answer must satisfy to count.

A plan is a value: the same spec and seed give the same requests, in the same order. Times are seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from paceline.contracts.slo import Slo


class Endpoint(StrEnum):
    CHAT = "chat"  # /v1/chat/completions
    COMPLETIONS = "completions"  # /v1/completions with a text
    TOKEN_IDS = "token_ids"  # /v1/completions with token ids: the prompt length is exact


class SloClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The targets of one class of requests, and the share of requests that must meet them all."""

    name: str = "default"
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    ttfa_s: float | None = None  # first content or tool token: what counts after a reasoning phase
    icl_max_s: float | None = None  # longest gap between two chunks a reader may see
    share: float = 0.95  # attainment the class asks for
    validators: tuple[str, ...] = ()  # "not_truncated", "json", "schema", "tool_call": see lab.quality.validity

    @property
    def slo(self) -> Slo:
        """The terms every component knows."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What the client does to one request on purpose. None does nothing."""

    cancel_after_tokens: int | None = None  # closes the connection after so many tokens: outcome client_cancel
    disconnect_after_s: float | None = None  # drops the connection so long after sending, without a word
    timeout_s: float | None = None  # the client gives up after so long: outcome timeout


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a plan. `id` is its place in the plan and pairs the arms of an experiment.

    `at_s` is the planned time after the start of the load. It is None where an earlier event decides: later turns of a
    session (end of the turn before + `think_s`) and closed loops (a free slot of `loop_slots`).
    """

    id: int
    stream: str  # name of the stream in the spec
    slo_class: str = "default"
    tenant: str | None = None  # names the key to use; without one of that name, and None: the run's own key
    priority: int | None = None  # as the server understands it; None is not sent
    service_class: str | None = None  # paceline's extension; None is not sent
    at_s: float | None = None
    endpoint: Endpoint = Endpoint.CHAT
    streamed: bool = True
    num_input_tokens: int = 0  # asked of the prompt, template included; history of a session comes on top
    num_output_tokens: int = 0  # asked of the answer
    exact_output: bool = True  # force that length (min_tokens = max_tokens, ignore_eos), where the server can
    temperature: float = 0.0
    content: str = "natural"  # natural, synthetic, token_ids, file, tools, structured: see lab.workload.content
    content_seed: int = 0  # f(run, stream, index): draws this request's own text
    prefix_group: int | None = None  # requests of one group begin with the same text
    num_prefix_tokens: int = 0  # of num_input_tokens
    shared: tuple[int, ...] = ()  # passages after the prefix, in this order: equal ids are equal texts for all streams
    num_shared_tokens: int = 0  # of each passage; the last ends where the prompt does
    session: int | None = None
    turn: int = 0
    last_turn: bool = True
    think_s: float = 0.0
    loop_slots: int | None = None  # closed loop: at most so many requests of this stream at once
    faults: Faults = Faults()
    extra: dict[str, Any] = {}  # further fields of the body, as they are sent


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one request, ready to be sent. Exactly one of the first three is set."""

    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    num_tokens: int | None = None  # what the renderer counted; None where nothing could count
    body: dict[str, Any] = {}  # fields that belong to the content: tools, response_format
    schema: dict[str, Any] | None = None  # what the answer (or the call's arguments) must satisfy
