"""What a run says of the fleet it was on: from a simulation's fingerprint, with prices made again of the same card."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline import hub
from paceline.assemble.lint.fleet import Work, device_facts, layouts_of
from paceline.assemble.lint.prices import divided_prices, prices_of
from paceline.assemble.lint.told import count
from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.sim_engine import rank_of
from paceline.config import read_environment
from paceline.contracts.artefact import RunInfo, Window
from paceline.contracts.kv import KVFormat, kv_format
from paceline.contracts.specs import ModelSpec
from paceline.cost.prior import Degrees
from paceline.errors import PacelineError
from paceline.lab.experiment.groups import DECLARED, plain
from paceline.planner.cards import CARDS
from paceline.planner.devices import DeviceCard
from paceline.planner.lint import DeviceFacts, FleetFacts, LayoutFacts, Prices, Sample, TierFacts, Timed
from paceline.planner.lint.batch import mean_rows
from paceline.planner.speculation import check_curve

NUM_LOOKS = 200
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Around(msgspec.Struct, frozen=True):
    """What is known of a run beyond its engine's options."""

    fleet: FleetFacts | None = None
    device: DeviceFacts | None = None
    prices: Prices | None = None


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation's fingerprint says, as `assemble.sim` writes it. What it does not say has its default."""

    card: DeviceCard | None = None
    degrees: Degrees = Degrees()
    expert_imbalance: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    replicas: _Count = 1
    router: str = ""
    changes: tuple[str, ...] = ()
    scaling: dict[str, Any] = {}
    prefill_and_decode: dict[str, Any] = {}
    acceptance: tuple[float, ...] = ()
    experts: _Count | None = None
    tiers: tuple[TierFacts, ...] = ()
    tier_policy: str = ""
    cold_start_s: _Seconds = 0.0
    cold_start_phases_s: dict[str, _Seconds] = {}


def around(info: RunInfo, requests: Sequence[Timed]) -> Around:
    """Nothing of a run that was not simulated, but for speculation, which a server's options tell; and nothing of one
    that says it otherwise than this version does."""
    if "simulation" not in info.fingerprint:
        return Around(fleet=FleetFacts(speculates=True) if _speculates(info) else None)
    told = _told(info)
    if told is None:
        return Around()
    layouts, prices = _priced(info, told, requests)
    fleet = FleetFacts(
        num_replicas=told.replicas,
        router=told.router,
        even=not (told.changes or told.scaling or told.prefill_and_decode),
        layouts=layouts,
        acceptance=told.acceptance,
        speculates=bool(told.acceptance),
        num_experts=told.experts,
        tiers=told.tiers,
        tier_policy=told.tier_policy,
    )
    return Around(fleet=fleet, device=None if told.card is None else device_facts(told.card), prices=prices)


def _told(info: RunInfo) -> _Told | None:
    """None where it is of a version that described it otherwise, or cannot be."""
    try:
        told = msgspec.convert(info.fingerprint.get("simulation"), _Told)
        if told.acceptance:
            check_curve(told.acceptance)
    except (msgspec.ValidationError, PacelineError):
        return None
    return told if told.card is None or _has_rates(told.card) else None


def _has_rates(card: DeviceCard) -> bool:
    rates = (card.spec.memory_bytes, card.spec.gflops, card.spec.memory_gbps, card.link_gbps, card.net_gbps,
             card.per_node, 1.0 if card.fp8_gflops is None else card.fp8_gflops, *card.link_latency_us)  # fmt: skip
    return all(0 < rate < math.inf for rate in rates)


def _priced(info: RunInfo, told: _Told, requests: Sequence[Timed]) -> tuple[tuple[LayoutFacts, ...], Prices | None]:
    """Prices of the engine and of its layouts; none where it cannot be made again: of a model that is not known here,
    or divided as no model is."""
    try:
        made = None if told.card is None else _Made.of(info, told.card, told.degrees, told.expert_imbalance)
        return ((), None) if made is None else (made.layouts(told.replicas, requests), made.prices())
    except PacelineError:
        return (), None


def _speculates(info: RunInfo) -> bool:
    return any(value and DECLARED.get(plain(name)) == "speculation" for name, value in info.config.items())


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that was simulated, as far as prices need it."""

    spec: ModelSpec
    card: DeviceCard
    degrees: Degrees
    dtype: str
    kv: KVFormat
    expert_imbalance: float
    chunk: int

    @classmethod
    def of(cls, info: RunInfo, card: DeviceCard, degrees: Degrees, expert_imbalance: float) -> _Made | None:
        """None where the model is not known here, or the run does not say how it computed."""
        spec, dtype = _model(info.target.model), str(info.config.get("dtype"))
        if spec is None or dtype not in DTYPE_BYTES:
            return None
        chunk = count(info.config.get("prefill_chunk_tokens")) or count(info.config.get("max_num_batched_tokens"))
        kv = kv_format(str(info.config.get("kv_cache_dtype", dtype)), spec)
        return cls(spec=spec, card=card, degrees=degrees, dtype=dtype, kv=kv, expert_imbalance=expert_imbalance,
                   chunk=chunk or 2048)  # fmt: skip

    def prices(self) -> Prices:
        if self.degrees.num_ranks > 1:
            own, _ = rank_of(self.spec, self.degrees, self.dtype)
            return divided_prices(self.spec, own, self.card, self.degrees, self.dtype, self.kv, self.expert_imbalance)
        held = self.spec.num_parameters * DTYPE_BYTES[self.dtype]
        return prices_of(self.spec, self.card.spec, self.dtype, self.kv, held)

    def layouts(self, num_replicas: int, requests: Sequence[Timed]) -> tuple[LayoutFacts, ...]:
        """Priced for the requests that were answered, with the rows that decoded together."""
        rows = mean_rows(requests)
        done = [(r, n) for r, n in zip(requests, rows, strict=True) if r.ok and r.num_prompt and r.num_tokens]
        if not done:
            return ()
        num = len(done)
        prompt = sum(r.num_prompt or 0 for r, _ in done) / num
        output = max(1.0, sum(r.num_tokens or 0 for r, _ in done) / num - prompt)
        work = Work(
            num_rows=max(1, round(sum(n for _, n in done) / num)),
            num_prompt=max(1.0, prompt - sum(r.num_cached or 0 for r, _ in done) / num),
            num_output=output,
            context=max(1, round(prompt + output / 2)),
            chunk=self.chunk,
        )
        return layouts_of(
            self.spec, self.card, self.degrees, num_replicas, work, dtype=self.dtype, kv=self.kv,
            expert_imbalance=self.expert_imbalance,
        )  # fmt: skip


def simulated_starts(info: RunInfo) -> Iterator[Mapping[str, Any]]:
    """The cold start that replicas were given."""
    told = _told(info) if "simulation" in info.fingerprint else None
    if told is not None and told.cold_start_s:
        yield {"kind": "simulated", "ready_s": told.cold_start_s, "phases": told.cold_start_phases_s}


def looks_of(window: Window, requests: Sequence[Timed]) -> tuple[Sample, ...]:
    """Who ran and who queued at even times, where one replica answered all and told each one's time in its queue."""
    known = [r for r in requests if r.send_s is not None and r.first_s is not None and r.end_s is not None]
    if len({r.replica for r in known}) != 1 or any(r.queue_s is None for r in known):
        return ()
    at = window.start_ns / 1e9 + window.seconds * (np.arange(NUM_LOOKS) + 0.5) / NUM_LOOKS
    sent = _happened([r.send_s or 0.0 for r in known], at)
    begun = _happened([(r.send_s or 0.0) + (r.queue_s or 0.0) for r in known], at)
    ended = _happened([r.end_s or 0.0 for r in known], at)
    return tuple(
        Sample(at_s=float(t), num_running=float(running), num_waiting=float(waiting))
        for t, running, waiting in zip(at, begun - ended, sent - begun, strict=True)
    )


def _happened(events: Sequence[float], at: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of them have happened at each time."""
    return np.asarray(np.searchsorted(np.sort(np.asarray(events)), at, side="right"), dtype=np.int64)


def _model(name: str) -> ModelSpec | None:
    """A card's sizes, or those of files that are here; nothing is fetched."""
    if name in CARDS:
        return CARDS[name].spec
    try:
        return hub.describe(hub.resolve(name, read_environment().home, download=False, weights=False))
    except PacelineError:
        return None
