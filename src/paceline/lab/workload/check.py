"""Whether a spec makes sense as a whole: what types cannot say. Each error names the stream and the way out."""

from __future__ import annotations

import msgspec

from paceline.contracts.workload import Endpoint, SloClass
from paceline.errors import ConfigError
from paceline.lab.workload.arrivals import Closed, Ramp, Steps
from paceline.lab.workload.spec import Stream, WorkloadSpec
from paceline.lab.workload.traces.replay import Trace

CONTENTS = ("natural", "synthetic", "token_ids", "file", "tools", "structured")
PROTOCOL = ("salt", "flush", "prime", "verify")


def check_spec(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec with every stream named. ConfigError for what cannot be run, or would be measured wrongly."""
    spec = msgspec.structs.replace(spec, streams=_named(spec))
    if not spec.streams:
        raise ConfigError("the spec has no stream", fix="add a table [[stream]] with an arrival")
    _check_span(spec)
    for step in spec.cache.protocol:
        _one_of("cache.protocol", step, PROTOCOL)
    for name, slo in spec.slo.items():
        _check_slo(name, slo)
    for stream in spec.streams:
        _check_stream(stream, spec)
    return spec


def _named(spec: WorkloadSpec) -> tuple[Stream, ...]:
    taken = [s.name for s in spec.streams if s.name]
    if len(set(taken)) != len(taken):
        raise ConfigError("two streams have one name", seen=", ".join(taken), fix="give each a name of its own")
    named: list[Stream] = []
    for i, stream in enumerate(spec.streams):
        if not stream.name:
            alone = sum(s.slo_class == stream.slo_class for s in spec.streams) == 1
            name = stream.slo_class if alone and stream.slo_class not in taken else f"{stream.slo_class}-{i + 1}"
            stream = msgspec.structs.replace(stream, name=name)
        named.append(stream)
    return tuple(named)


def _check_span(spec: WorkloadSpec) -> None:
    closed = [isinstance(s.arrival, Closed) for s in spec.streams]
    bounded = all(isinstance(s.arrival, Closed) and s.arrival.requests for s in spec.streams)
    if spec.duration_s is None and spec.num_requests is None and not bounded:
        raise ConfigError("the load has no end", expected="duration_s or num_requests", fix="duration_s = 60")
    for name, low in (("duration_s", 0.0), ("num_requests", 0), ("warmup_s", -1e-9), ("drain_s", -1e-9)):
        value = getattr(spec, name)
        if value is not None and not low < value < 1e9:
            raise ConfigError(f"{name} is out of range", seen=value, expected="above 0" if low >= 0 else "at least 0")
    for stream in spec.streams:
        if spec.duration_s is None and isinstance(stream.arrival, Ramp | Steps):
            raise ConfigError(f"stream {stream.name}: a ramp needs duration_s", fix="duration_s = 60")
        if isinstance(stream.arrival, Closed) and stream.arrival.requests is None and spec.num_requests is None:
            raise ConfigError(
                f"stream {stream.name}: a closed loop needs a number of requests",
                fix="arrival.requests = ..., or num_requests; with duration_s too, it ends where the first is reached",
            )
    if any(closed) and not all(closed) and spec.duration_s is None:
        raise ConfigError("closed and open streams together need duration_s", fix="duration_s = 60")


def _check_slo(name: str, slo: SloClass) -> None:
    for term in ("ttft_s", "tpot_s", "e2e_s", "ttfa_s", "icl_max_s"):
        value = getattr(slo, term)
        if value is not None and not value > 0:
            raise ConfigError(f"slo.{name}.{term} must be above 0", seen=value)
    if not 0 < slo.share <= 1:
        raise ConfigError(f"slo.{name}.share must lie between 0 and 1", seen=slo.share)


def _check_stream(stream: Stream, spec: WorkloadSpec) -> None:
    where = f"stream {stream.name}"
    stream.arrival.check(f"{where}: arrival")
    for name, length in (("input", stream.input), ("output", stream.output)):
        if length is not None:
            length.check(f"{where}: {name}")
        elif not isinstance(stream.arrival, Trace) and not (name == "input" and stream.content == "file"):
            raise ConfigError(f"{where} has no {name} length", fix=f"{name} = 128, or a distribution")
    _check_content(where, stream)
    for used in (stream.slo_class, stream.unstreamed_class):
        if used is not None and spec.slo and used not in spec.slo:
            raise ConfigError(
                f"{where}: its class has no targets", seen=used, expected=", ".join(spec.slo), fix=f"[slo.{used}]"
            )
    if stream.streaming_share < 1:
        _check_unstreamed(where, spec.slo.get(stream.unstreamed_class or stream.slo_class))
    _check_shares(where, stream)
    _check_shape(where, stream)


def _check_content(where: str, stream: Stream) -> None:
    _one_of(f"{where}: content", stream.content, CONTENTS)
    if (stream.endpoint is Endpoint.TOKEN_IDS) != (stream.content == "token_ids"):
        raise ConfigError(
            f"{where}: endpoint token_ids and content token_ids belong together",
            seen=f"endpoint {stream.endpoint}, content {stream.content}",
            fix='endpoint = "token_ids", content = "token_ids"',
        )
    if stream.content in ("tools", "structured") and stream.endpoint is not Endpoint.CHAT:
        raise ConfigError(
            f"{where}: {stream.content} requests are chat requests", seen=stream.endpoint, fix='endpoint = "chat"'
        )
    if (stream.content == "file") != (stream.file is not None):
        raise ConfigError(
            f"{where}: content file needs a file of prompts, and only it",
            fix='content = "file", file = "prompts.jsonl"',
        )
    if stream.content == "file" and (stream.prefix or stream.documents or stream.turns):
        raise ConfigError(
            f"{where}: prompts of a file are sent as they are", fix="leave prefix, documents and turns out"
        )
    low, high = stream.token_id_range
    if not 0 <= low < high - 1:
        raise ConfigError(f"{where}: token_id_range holds no ids", seen=f"{low} to {high}")


def _check_unstreamed(where: str, slo: SloClass | None) -> None:
    terms = (
        [] if slo is None else [t for t in ("ttft_s", "tpot_s", "ttfa_s", "icl_max_s") if getattr(slo, t) is not None]
    )
    if terms:
        assert slo is not None
        raise ConfigError(
            f"{where}: requests that are not streamed have no {terms[0].removesuffix('_s')}",
            seen=f"streaming_share below 1, class {slo.name} asks for {', '.join(terms)}",
            expected="a class that asks for e2e only",
            fix='unstreamed_class = "..."',
        )


def _check_shares(where: str, stream: Stream) -> None:
    faults = stream.faults
    shares = {"streaming_share": stream.streaming_share}
    if faults is not None:
        shares |= {"faults.cancel_share": faults.cancel_share, "faults.disconnect_share": faults.disconnect_share}
        shares["faults.timeout_share"] = faults.timeout_share or 0.0
        if faults.timeout_share is not None and faults.timeout_s is None:
            raise ConfigError(f"{where}: faults.timeout_share needs timeout_s")
        if faults.timeout_s is not None and not faults.timeout_s > 0:
            raise ConfigError(f"{where}: faults.timeout_s must be above 0", seen=faults.timeout_s)
        if not 0 <= faults.disconnect_after_s[0] <= faults.disconnect_after_s[1]:
            raise ConfigError(
                f"{where}: faults.disconnect_after_s must be two rising times", seen=faults.disconnect_after_s
            )
        if faults.cancel_after_tokens is not None:
            faults.cancel_after_tokens.check(f"{where}: faults.cancel_after_tokens")
        if faults.cancel_share and stream.streaming_share < 1:
            raise ConfigError(
                f"{where}: only streamed requests can be cancelled after tokens",
                fix="streaming_share = 1, or disconnect_share",
            )
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{where}: {name} must lie between 0 and 1", seen=share)
    if sum(shares.values()) - stream.streaming_share > 1 + 1e-9:
        raise ConfigError(f"{where}: the shares of faults add up to more than 1", seen=shares)


def _check_shape(where: str, stream: Stream) -> None:
    if stream.prefix is not None:
        _one_of(f"{where}: prefix.kind", stream.prefix.kind, ("text", "tools"))
        if stream.prefix.groups < 1 or stream.prefix.tokens < 1 or stream.prefix.zipf < 0:
            raise ConfigError(
                f"{where}: prefix needs groups and tokens of at least 1, zipf of at least 0", seen=stream.prefix
            )
    documents = stream.documents
    if documents is not None:
        if min(documents.pool, documents.per_request, documents.tokens) < 1 or documents.zipf < 0:
            raise ConfigError(f"{where}: documents needs pool, per_request and tokens of at least 1", seen=documents)
        if documents.per_request > documents.pool:
            raise ConfigError(f"{where}: documents.per_request is more than the pool", seen=documents)
        if stream.content not in ("natural", "synthetic"):
            raise ConfigError(f"{where}: documents are natural or synthetic text", seen=stream.content)
    turns = stream.turns
    if turns is not None:
        _one_of(f"{where}: turns.think", turns.think, ("exponential", "fixed"))
        if turns.max < 1 or (turns.mean is not None and not 1 <= turns.mean <= turns.max) or turns.think_s < 0:
            raise ConfigError(f"{where}: turns needs 1 <= mean <= max and think_s of at least 0", seen=turns)
        if stream.endpoint is not Endpoint.CHAT:
            raise ConfigError(f"{where}: sessions are chats", seen=stream.endpoint, fix='endpoint = "chat"')
        if isinstance(stream.arrival, Trace):
            raise ConfigError(f"{where}: a trace has its own turns", fix="leave turns out")


def _one_of(where: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{where} is not known", seen=value, expected=", ".join(known))
