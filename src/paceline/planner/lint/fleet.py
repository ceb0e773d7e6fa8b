"""Facts about what stands around one engine: how it lies over devices, who routes to it, drafts, lower tiers."""

from __future__ import annotations

import msgspec


class LayoutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One way to lay a model over the same devices, priced for the same requests. Milliseconds."""

    name: str  # TP8, 4 x (TP2), DP8
    options: dict[str, int]  # of `paceline sim`
    tp: int  # devices that divide each matrix
    num_replicas: int
    link: str  # what its all-reduces go over: NVLink, PCIe, network
    hops: bool = False  # that is no link made for it: a host's bus, or a network
    fits: bool = True
    num_rows: int  # of one replica
    step_ms: float  # decode step of so many rows: what they have for TPOT
    step_talk_ms: float  # all-reduces of it
    request_ms: float  # of one replica: a prompt, and a request's part of its decode steps
    talk_ms: float  # all-reduces of it
    saved_ms: float  # of computing, against no division of matrices
    tier: str  # of the prices

    @property
    def rps(self) -> float:
        """Requests that all replicas carry with these rows full."""
        return 1e3 * self.num_replicas / self.request_ms if self.request_ms > 0 else 0.0


class TierFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A lower tier of the KV cache. What a run did with it is None for a configuration."""

    name: str
    gbps: float  # one way
    latency_us: float = 0.0
    capacity_bytes: int = 0
    shared: bool = False
    restored_requests: int | None = None
    restore_ms_p95: float | None = None
    recompute_ms_p95: float | None = None  # prefill of the same tokens
    link_busy_share: float | None = None


class FleetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Engines behind a router, in the words of `paceline sim`."""

    num_replicas: int = 1
    router: str = ""
    even: bool = True  # all replicas do the same, all the time: none scaled, failed or apart from the others
    layouts: tuple[LayoutFacts, ...] = ()  # as it is, then others on the same devices; empty: nothing is divided
    acceptance: tuple[float, ...] = ()  # tokens a step yields with 1, 2, ... drafts; empty: no speculation
    speculates: bool = False
    num_experts: int | None = None  # of the model's mixture
    tiers: tuple[TierFacts, ...] = ()  # the nearest first
    tier_policy: str = ""  # priced, always, never


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The rates that predictions rest on."""

    name: str
    kind: str
    source: str
    memory_bytes: int
    gflops: float  # 16-bit products
    memory_gbps: float
    fp8_gflops: float | None = None
    link: str = ""  # "": not known
    link_gbps: float | None = None
    net_gbps: float | None = None
    sparse: bool = False  # flags of whoever described it
    both_directions: bool = False
    own: bool = True  # described by a user, not of the table


class StreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream of a load sends."""

    name: str
    content: str  # natural, synthetic, token_ids, file, ...
    forced: bool  # answers are made to have a length
