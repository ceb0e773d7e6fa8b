"""The numbers of one run, as one pure function computes them from its records. See `slo` for what each time means."""

from __future__ import annotations

import msgspec

from paceline.contracts.artefact import Caution, ClientHealth, Estimate, Window


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of times in seconds over the requests that have one; failed requests are counted apart."""

    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate
    mean: float | None = None
    max: float | None = None
    n: int = 0
    num_undefined: int = 0  # ended well without this time: one chunk only, not streamed


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of the window that share a class, tenant, stream, length bucket or turn; or all of them.

    Latencies by name: ttft, ttft_send, ttfa, tpot, icl, itl, icl_max, e2e, e2e_send, tail, lag; from the planned time
    unless the name says send.
    """

    kind: str  # all, class, tenant, stream, bucket, turn
    name: str
    num_requests: int = 0  # planned in the window
    outcomes: dict[str, int] = {}
    goodput_rps: Estimate = Estimate()
    good_tokens_per_s: Estimate = Estimate()
    attainment: Estimate = Estimate()
    missed: dict[str, int] = {}  # term -> requests that missed it: outcome, ttft, tpot, e2e, ..., a validator
    valid: dict[str, tuple[int, int]] = {}  # validator -> (passed, judged); cut answers that do not pass stand apart
    num_cut: int = 0  # answers that met their limit of tokens before they were what a validator asks
    num_vacuous: int = 0  # good although TPOT is undefined
    request_rps: float | None = None  # ended ok / window
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    prefix_hit: Estimate = Estimate()  # cached / prompt tokens
    prefix_hit_planned: float | None = None
    latency: dict[str, Latency] = {}  # of requests that ended well
    slo_latency: dict[str, Latency] = {}  # for decisions: all that count, failed ones at +inf (then value is None)
    fluidity: Estimate = Estimate()  # share of tokens on time, deadlines carrying slack


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the window is one regime."""

    answer: str = "unknown"  # steady, warming, saturated (queue grows), shifted, too short
    sentence: str = ""
    warmup_s: float = 0.0  # suggested crop
    trend_p: float | None = None  # Mann-Kendall
    shift_p: float | None = None  # Pettitt
    in_flight_slope: float | None = None  # requests per second


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    window: Window
    closed_loop: bool = False
    offered_rps: float | None = None  # planned in the window / window
    output_tokens_per_s: Estimate = Estimate()  # by token time within the window
    input_tokens_per_s: float | None = None
    in_flight_mean: float | None = None
    littles_law_error: float | None = None  # |mean in flight - rate x mean E2E| / the latter
    num_drained: int = 0  # of the window, ended after it
    steady: Steady = Steady()
    ttft_split: dict[str, Latency] = {}  # client_lag, network, queue, prefill; prefill_saved beside
    groups: tuple[GroupMetrics, ...] = ()  # "all" first
    cautions: tuple[Caution, ...] = ()
    client: ClientHealth = msgspec.field(default_factory=ClientHealth)
    token_sources: dict[str, int] = {}

    @property
    def whole(self) -> GroupMetrics:
        return self.groups[0]
