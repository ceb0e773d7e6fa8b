"""What a run says of the fleet it was on: from a simulation's fingerprint, with prices made again of the same card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline import hub
from paceline.assemble.lint.fleet import Work, device_facts, layouts_of
from paceline.assemble.lint.prices import divided_prices, prices_of
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

NUM_LOOKS = 200
_TIER = {"name", "capacity_bytes", "gbps", "latency_us", "shared", "restored_requests", "restore_ms_p95",
         "recompute_ms_p95", "link_busy_share"}  # fmt: skip


class Around(msgspec.Struct, frozen=True):
    """What is known of a run beyond its engine's options."""

    fleet: FleetFacts | None = None
    device: DeviceFacts | None = None
    prices: Prices | None = None


def around(info: RunInfo, requests: Sequence[Timed]) -> Around:
    """Nothing of a run that was not simulated, but for speculation, which a server's options tell."""
    told = info.fingerprint.get("simulation")
    if not isinstance(told, Mapping):
        return Around(fleet=FleetFacts(speculates=True) if _speculates(info) else None)
    try:
        card = msgspec.convert(told["card"], DeviceCard) if "card" in told else None
        degrees = msgspec.convert(told.get("degrees", {}), Degrees)
    except msgspec.ValidationError:  # of a version that described them otherwise
        card, degrees = None, Degrees()
    made = None if card is None else _Made.of(info, card, degrees, float(told.get("expert_imbalance", 1.0)))
    num_replicas = int(told.get("replicas", 1))
    fleet = FleetFacts(
        num_replicas=num_replicas,
        router=str(told.get("router", "")),
        even=not any(told.get(name) for name in ("changes", "scaling", "prefill_and_decode")),
        layouts=() if made is None else made.layouts(num_replicas, requests),
        acceptance=tuple(told.get("acceptance", ())),
        speculates=bool(told.get("acceptance")),
        num_experts=told.get("experts"),
        tiers=tuple(_tier(row) for row in told.get("tiers", ())),
        tier_policy=str(told.get("tier_policy", "")),
    )
    prices = None if made is None else made.prices()
    return Around(fleet=fleet, device=None if card is None else device_facts(card), prices=prices)


def _speculates(info: RunInfo) -> bool:
    return any(value and DECLARED.get(plain(name)) == "speculation" for name, value in info.config.items())


def _tier(row: Mapping[str, Any]) -> TierFacts:
    return TierFacts(**{name: value for name, value in row.items() if name in _TIER})


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
        spec, dtype = _model(info.target.model), info.config.get("dtype")
        if spec is None or dtype not in DTYPE_BYTES:
            return None
        chunk = info.config.get("prefill_chunk_tokens") or info.config.get("max_num_batched_tokens") or 2048
        kv = kv_format(str(info.config.get("kv_cache_dtype", dtype)), spec)
        return cls(spec=spec, card=card, degrees=degrees, dtype=dtype, kv=kv, expert_imbalance=expert_imbalance,
                   chunk=int(chunk))  # fmt: skip

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
    told = info.fingerprint.get("simulation")
    if isinstance(told, Mapping) and told.get("cold_start_s"):
        yield {"kind": "simulated", "ready_s": told["cold_start_s"], "phases": told.get("cold_start_phases_s", {})}


def looks_of(window: Window, requests: Sequence[Timed]) -> tuple[Sample, ...]:
    """Who ran and who queued at even times, where one replica answered all and told each one's time in its queue."""
    known = [r for r in requests if r.send_s is not None and r.first_s is not None and r.end_s is not None]
    if len({r.replica for r in known}) != 1 or any(r.queue_s is None for r in known):
        return ()
    at = window.start_ns / 1e9 + window.seconds * (np.arange(NUM_LOOKS) + 0.5) / NUM_LOOKS
    sent = _count([r.send_s or 0.0 for r in known], at)
    begun = _count([(r.send_s or 0.0) + (r.queue_s or 0.0) for r in known], at)
    ended = _count([r.end_s or 0.0 for r in known], at)
    return tuple(
        Sample(at_s=float(t), num_running=float(running), num_waiting=float(waiting))
        for t, running, waiting in zip(at, begun - ended, sent - begun, strict=True)
    )


def _count(events: Sequence[float], at: NDArray[np.float64]) -> NDArray[np.int64]:
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
