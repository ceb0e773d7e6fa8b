"""A request made ready: everything that sending it needs, so that nothing is rendered when its time comes."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from paceline.contracts.artefact import NEVER, RequestRecord
from paceline.contracts.workload import Faults, PlannedRequest, RenderedPrompt
from paceline.errors import LabError
from paceline.lab.load.target import CHAT_PATH, COMPLETIONS_PATH, Target


class Job(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One planned request with its body. `record` has what the plan says; the rest is filled in as it happens."""

    record: RequestRecord
    at_ns: int = NEVER  # planned; NEVER where an earlier event decides
    path: str = CHAT_PATH
    body: bytes = b""  # empty: a later turn, rendered when the turn before it has ended
    exact: bool = False  # the server was made to answer with num_output_asked tokens
    faults: Faults = Faults()
    last_turn: bool = True
    think_ns: int = 0
    loop_slots: int | None = None
    messages: list[dict[str, Any]] = []  # of the prompt; kept where a later turn goes on from it


def make_job(
    target: Target, request: PlannedRequest, prompt: RenderedPrompt | None, *, keep_messages: bool = False
) -> Job:
    """`prompt` None: a later turn, see `fill`. Raises LabError for a prompt without content."""
    record = RequestRecord(
        id=request.id,
        stream=request.stream,
        slo_class=request.slo_class,
        tenant=request.tenant,
        session=request.session,
        turn=request.turn,
        streamed=request.streamed,
        num_input_asked=request.num_input_tokens,
        num_output_asked=request.num_output_tokens,
        num_prefix_asked=request.num_prefix_tokens,
        num_shared_asked=len(request.shared) * request.num_shared_tokens,
    )
    job = Job(
        record=record,
        at_ns=NEVER if request.at_s is None else round(request.at_s * 1e9),
        exact=request.exact_output and target.info.ignore_eos,
        faults=request.faults,
        last_turn=request.last_turn,
        think_ns=round(request.think_s * 1e9),
        loop_slots=request.loop_slots,
    )
    if prompt is not None:
        fill(job, target, request, prompt, keep_messages=keep_messages)
    return job


def fill(
    job: Job, target: Target, request: PlannedRequest, prompt: RenderedPrompt, *, keep_messages: bool = False
) -> None:
    """Give a job its content."""
    body, path = body_of(target, request, prompt)
    job.body, job.path = msgspec.json.encode(body), path
    job.record.prompt_sha256 = prompt_digest(prompt)
    if keep_messages:
        job.messages = prompt.messages or [{"role": "user", "content": prompt.text or ""}]


def body_of(target: Target, request: PlannedRequest, prompt: RenderedPrompt) -> tuple[dict[str, Any], str]:
    """The JSON body and the path it goes to. Fields that only some servers know are sent to those alone; what the
    prompt and the plan add comes last and wins."""
    info = target.info
    body: dict[str, Any] = {"model": info.model}
    if prompt.messages is not None:
        body["messages"], path = prompt.messages, CHAT_PATH
    elif prompt.token_ids is not None:
        body["prompt"], path = prompt.token_ids, COMPLETIONS_PATH
    elif prompt.text is not None:
        body["prompt"], path = prompt.text, COMPLETIONS_PATH
    else:
        raise LabError("a prompt has no content", seen=f"request {request.id} of stream {request.stream}")
    field = target.max_tokens_field if path == CHAT_PATH else "max_tokens"
    body[field] = request.num_output_tokens
    body["temperature"] = request.temperature
    if request.exact_output and info.ignore_eos:
        body |= {"ignore_eos": True, "min_tokens": request.num_output_tokens}
    if request.streamed:
        body["stream"] = True
        if target.stream_options:
            options = {"include_usage": True}
            if target.chunk_counts == "continuous":
                options["continuous_usage_stats"] = True
            body["stream_options"] = options
        if target.chunk_counts == "timings":
            body["timings_per_token"] = True
    if info.timings:
        body["timings"] = True
    if request.priority is not None:
        body["priority"] = request.priority
    if request.service_class is not None and info.kind == "paceline":
        body["service_class"] = request.service_class
    return body | prompt.body | request.extra, path


def prompt_digest(prompt: RenderedPrompt) -> str:
    """Of the content alone: equal prompts show, whatever else the requests ask."""
    content: object = prompt.messages or prompt.token_ids or prompt.text
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()
