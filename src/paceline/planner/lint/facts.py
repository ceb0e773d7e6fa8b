"""What rules are decided from: plain values, made once from a configuration or from what a run left behind.

Every part may be missing: a configuration without a workload has no load, a run of another server tells no options.
A rule says what it needs; what is missing makes it skipped, never silently passed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paceline.contracts.artefact import ClientHealth, RunInfo
from paceline.contracts.metrics import RunMetrics
from paceline.contracts.workload import SloClass
from paceline.planner.lint.fleet import DeviceFacts, FleetFacts, StreamFacts
from paceline.planner.lint.prices import Prices


class WeightFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantised model's weights are kept."""

    stored: str  # as in the file: gguf:Q4_1
    stored_bytes: int
    held_bytes: int  # in memory, as they are multiplied
    why: str = ""  # they are not kept as stored
    instead: dict[str, Any] = {}  # options with which they would be; empty: none here


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Options as they are resolved; None where they are not known."""

    max_num_seqs: int | None = None
    max_model_len: int | None = None
    expected_context: int | None = None  # tokens that KV is planned for, of each running sequence
    prefix_cache_reserve: float | None = None  # KV kept for reuse, as a multiple of the running sequences'
    prefix_caching: bool | None = None
    kv_room_bytes: int | None = None  # what weights leave of the granted memory
    kv_tokens: int | None = None  # what the KV cache holds; models with one KV group only
    weights: WeightFacts | None = None
    load_s: float | None = None  # to load the weights, at the rate that was timed


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was planned."""

    stream: str
    slo_class: str
    num_input: int  # tokens, the history of a session included
    num_output: int
    num_cached: int = 0  # of the prompt, at the front: what a prefix cache can give back
    in_window: bool = True
    group: int | None = None  # requests of one group begin with the same text
    num_prefix: int = 0  # tokens of that


class LoadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A load: as planned, or as a run's records show that it was planned."""

    name: str
    requests: tuple[Asked, ...]
    window_s: float = 0.0  # measured part; 0: it ends with its last request
    closed_loop: bool = False  # some stream has no schedule
    slots: int | None = None  # of all closed streams together
    at_s: tuple[float, ...] = ()  # planned arrivals of open streams, rising; one for each session
    protocol: tuple[str, ...] = ()  # what is done to the prefix cache before
    seed: int = 0
    texts: tuple[StreamFacts, ...] = ()  # what each stream sends; empty: not known

    @property
    def rate_rps(self) -> float | None:
        """Requests planned in the window per second; None for closed loops."""
        if self.closed_loop or self.window_s <= 0:
            return None
        return sum(r.in_window for r in self.requests) / self.window_s


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it went. Seconds from the start of the load; None where the thing did not happen."""

    id: int
    slo_class: str
    in_window: bool
    ok: bool
    first_s: float | None = None  # first token
    last_s: float | None = None  # last token
    send_s: float | None = None
    end_s: float | None = None
    tpot_s: float | None = None
    lag_s: float | None = None  # planned to sent
    num_tokens: int | None = None  # prompt and answer
    num_prompt: int | None = None
    num_cached: int | None = None  # of the prompt
    num_restored: int | None = None  # of these, from a lower tier
    tokens_per_step: float | None = None  # of the answer after its first piece, where the server tells
    at_length: bool | None = None  # the answer ended at exactly the planned length
    replica: int | None = None  # that answered, and what the server says of its time
    queue_s: float | None = None
    prefill_s: float | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the server's metrics within the window."""

    at_s: float
    num_running: float | None = None
    num_waiting: float | None = None
    kv_usage: float | None = None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run. `metrics` are recomputed from the raw records, not read."""

    info: RunInfo
    metrics: RunMetrics
    requests: tuple[Timed, ...]
    samples: tuple[Sample, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs between two configurations."""

    name: str
    group: str  # batch, kv, quantisation, ...; workload, slo or model for what is none of the server's options
    before: Any = None
    after: Any = None


class RatioFact(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, after over before."""

    figure: str
    ratio: float | None
    lo: float | None = None
    hi: float | None = None
    answer: str = ""  # better, worse, same, inconclusive, ...


class PairFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Two configurations or runs side by side: a step of an experiment, or what `--against` named."""

    before: str
    after: str
    changes: tuple[Change, ...] = ()
    ratios: tuple[RatioFact, ...] = ()  # the deciding one first; empty: nothing was measured
    num_equal_prompts: int = 0  # prompts of the later run that the earlier one had sent, text for text
    declared_group: str = ""  # of a step in an experiment


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a server. Seconds since its process was made."""

    kind: str  # cold, warm, as found
    seconds: float  # to the first token, or until it was ready
    phases: dict[str, float] = {}  # the server's own


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals that the service really sees."""

    name: str
    cv: float  # of the gaps between requests
    num_requests: int


class ClientFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The client that will send a load, as an earlier run of it shows."""

    name: str  # of that run
    health: ClientHealth
    num_again: int = 0  # requests with several records
    num_attempts: int = 0  # records of these


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known."""

    source: Literal["config", "run", "experiment"]
    name: str
    engine: EngineFacts | None = None
    prices: Prices | None = None
    slo: tuple[SloClass, ...] = ()
    load: LoadFacts | None = None
    run: RunFacts | None = None
    pairs: tuple[PairFacts, ...] = ()
    trace: TraceFacts | None = None
    starts: tuple[StartFacts, ...] = ()
    start_budget_s: float | None = None
    fleet: FleetFacts | None = None
    device: DeviceFacts | None = None
    client: ClientFacts | None = None
