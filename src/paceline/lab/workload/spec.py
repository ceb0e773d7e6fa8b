"""What a load is, as a user writes it: streams, classes with targets, and how long. TOML is its form on disk.

A stream is an arrival process with lengths, content, a class and a tenant. `duration_s` is the measured part; the
warm-up comes before it, draining after. Every struct refuses unknown keys; `parse.load_spec` says which was meant.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from paceline.contracts.workload import Endpoint, SloClass
from paceline.lab.workload.arrivals import Burst, Closed, Constant, Gamma, Mmpp, Periodic, Poisson, Ramp, Steps, Weibull
from paceline.lab.workload.lengths import AnyLength
from paceline.lab.workload.traces.replay import Trace

AnyArrival: TypeAlias = Closed | Constant | Poisson | Gamma | Weibull | Burst | Ramp | Steps | Periodic | Mmpp | Trace


class SloSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One class's targets as written: milliseconds or seconds, not both for one term."""

    name: str | None = None  # the table's own name, if it is said at all
    ttft_ms: float | None = None
    ttft_s: float | None = None
    tpot_ms: float | None = None
    tpot_s: float | None = None
    e2e_ms: float | None = None
    e2e_s: float | None = None
    ttfa_ms: float | None = None
    ttfa_s: float | None = None
    icl_max_ms: float | None = None
    icl_max_s: float | None = None
    share: float = 0.95
    validators: tuple[str, ...] = ()


class Prefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests fall into `groups`, by popularity; those of one group begin with the same `tokens`."""

    groups: int
    tokens: int
    zipf: float = 0.0  # the k-th group is k ** -zipf times as popular as the first; 0: all alike
    kind: str = "text"  # text, or tools: a block that describes tools, as agents send it


class Documents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each request quotes `per_request` of `pool` passages after the prefix, in an order of its own."""

    pool: int
    per_request: int
    tokens: int  # of each
    zipf: float = 0.0


class Turns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session's turns: geometric with this mean, cut at `max` (or exactly `max` each when mean is not given)."""

    max: int
    mean: float | None = None
    think_s: float = 1.0  # mean time from the end of an answer to the next question
    think: str = "exponential"  # or fixed


class FaultShares(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the client does to some of the requests on purpose. A request has one of the three at most."""

    cancel_share: float = 0.0
    cancel_after_tokens: AnyLength | None = None  # None: alike between 1 token and half the answer
    disconnect_share: float = 0.0
    disconnect_after_s: tuple[float, float] = (0.05, 1.0)  # alike between the two
    timeout_share: float | None = None  # None: all the others, if timeout_s is set
    timeout_s: float | None = None


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"slo_class": "class"}):
    """Requests of one kind. In TOML: a table [[stream]]; its `slo_class` is written `class`."""

    arrival: AnyArrival
    name: str = ""  # the class's name if it is the only stream of that class, else with a number
    slo_class: str = "default"
    unstreamed_class: str | None = None  # class of the requests that are not streamed: it may only ask for e2e
    tenant: str | None = None
    priority: int | None = None
    service_class: str | None = None
    endpoint: Endpoint = Endpoint.CHAT
    content: str = "natural"  # natural, synthetic, token_ids, file, tools, structured
    file: str | None = None  # of prompts, for content "file"
    input: AnyLength | None = None  # tokens of the request's own part, template included; None: the trace's
    output: AnyLength | None = None
    exact_output: bool | None = None  # None: yes, except for tools and structured, where the answer decides
    temperature: float = 0.0
    streaming_share: float = 1.0
    prefix: Prefix | None = None
    documents: Documents | None = None
    turns: Turns | None = None
    faults: FaultShares | None = None
    token_id_range: tuple[int, int] = (1000, 30000)  # for content "token_ids": from, and up to without
    extra: dict[str, Any] = {}  # further fields of each body


class Cache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to the server's prefix cache before measuring, and what it must show afterwards."""

    protocol: tuple[str, ...] = ("salt", "flush")  # of salt, flush, prime, verify
    expect_hit: ExpectHit | None = None


class ExpectHit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of prompt tokens that must come from the cache; `target` None is what the plan itself implies."""

    target: float | None = None
    tol: float = 0.02


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"streams": "stream"}):
    """A whole load. One of `duration_s` and `num_requests` is set, or both: it ends where the first is reached."""

    streams: tuple[Stream, ...]
    name: str = "workload"
    description: str = ""
    seed: int = 0
    duration_s: float | None = None  # measured part
    num_requests: int | None = None  # in all, warm-up included
    warmup_s: float = 0.0
    drain_s: float = 30.0  # waited for answers after the last planned time
    max_model_len: int | None = None  # requests are cut to fit, sessions end before they would not
    slo: dict[str, SloClass] = {}
    cache: Cache = Cache()

    @property
    def classes(self) -> list[SloClass]:
        """The classes with targets that the streams use, in order of first use."""
        used = [c for s in self.streams for c in (s.slo_class, s.unstreamed_class) if c is not None]
        return [self.slo[name] for name in dict.fromkeys(used) if name in self.slo]

    @property
    def span_s(self) -> float | None:
        """Warm-up and measured part; None where only the number of requests is set."""
        return None if self.duration_s is None else self.warmup_s + self.duration_s
