"""What stands around one engine, as a lint's facts: layouts of the same devices, priced for the same requests; the
device; tiers and drafts in the words of `paceline sim`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.sim_engine import EXPERT_IMBALANCE, ONE_DEVICE, layout_steps, rank_of
from paceline.assemble.sim_tiers import tier_of
from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import ModelSpec
from paceline.cost import decode_shape, prefill_shape
from paceline.cost.prior import Degrees
from paceline.errors import ConfigError, UnsupportedError
from paceline.planner.devices import DEVICES, DeviceCard
from paceline.planner.layout import Layout, divisors
from paceline.planner.lint import DeviceFacts, FleetFacts, LayoutFacts, TierFacts
from paceline.planner.speculation import check_curve
from paceline.planner.step import LayoutSteps
from paceline.router import POLICIES
from paceline.sim.drafts import CurveDrafter
from paceline.sim.restores import RESTORE_POLICIES


@dataclass(frozen=True)
class Serving:
    """What `paceline sim` is told beside a configuration."""

    degrees: Degrees = ONE_DEVICE
    expert_imbalance: float = EXPERT_IMBALANCE
    num_replicas: int = 1
    router: str = "least-loaded"
    acceptance: tuple[float, ...] = ()  # tokens a step yields with 1, 2, ... drafts
    tiers: tuple[TierFacts, ...] = ()
    tier_policy: str = "priced"

    def check(self) -> None:
        """Raises ConfigError for what a simulation would refuse."""
        if self.router not in POLICIES:
            raise ConfigError("no router policy has this name", seen=self.router, expected=", ".join(POLICIES))
        if self.tier_policy not in RESTORE_POLICIES:
            raise ConfigError("no such policy of tiers", seen=self.tier_policy, expected=", ".join(RESTORE_POLICIES))
        if self.acceptance:
            check_curve(self.acceptance)
            CurveDrafter(self.acceptance)


ALONE = Serving()


def _tier(text: str) -> TierFacts:
    tier = tier_of(text)
    return TierFacts(
        name=tier.name, gbps=tier.link.gbps, latency_us=tier.link.latency_us, capacity_bytes=tier.capacity_bytes,
        shared=tier.shared,
    )  # fmt: skip


def serving_of(
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    cp: int = 1,
    num_replicas: int = 1,
    router: str = "least-loaded",
    acceptance: Sequence[float] = (),
    tiers: Sequence[str] = (),
    tier_policy: str = "priced",
) -> Serving:
    """From what is typed. `tiers`: as `--kv-tier` has them, the nearest first."""
    return Serving(
        degrees=Degrees(tp=tp, pp=pp, ep=ep, cp=cp),
        num_replicas=num_replicas,
        router=router,
        acceptance=tuple(acceptance),
        tiers=tuple(map(_tier, tiers)),
        tier_policy=tier_policy,
    )


@dataclass(frozen=True)
class Work:
    """The requests that layouts are priced for, means."""

    num_rows: int  # of one replica as it is
    num_prompt: float  # tokens that are computed
    num_output: float
    context: int  # of a running row
    chunk: int  # prompt tokens of one step, at most


def fleet_facts(serving: Serving, spec: ModelSpec, layouts: tuple[LayoutFacts, ...] = ()) -> FleetFacts:
    """Of a configuration."""
    return FleetFacts(
        num_replicas=serving.num_replicas,
        router=serving.router,
        layouts=layouts,
        acceptance=serving.acceptance,
        speculates=bool(serving.acceptance),
        num_experts=None if spec.experts is None else spec.experts.num_experts,
        tiers=serving.tiers,
        tier_policy=serving.tier_policy,
    )


def device_facts(card: DeviceCard) -> DeviceFacts:
    return DeviceFacts(
        name=card.spec.name,
        kind=card.spec.kind,
        source=card.source,
        memory_bytes=card.spec.memory_bytes,
        gflops=card.spec.gflops,
        memory_gbps=card.spec.memory_gbps,
        fp8_gflops=card.fp8_gflops,
        link=card.link,
        link_gbps=None if "link_gbps" in card.assumed else card.link_gbps,
        net_gbps=None if "net_gbps" in card.assumed else card.net_gbps,
        sparse=not card.dense,
        both_directions=not card.one_way,
        own=DEVICES.get(card.spec.name) != card,
    )


@dataclass(frozen=True)
class _Priced:
    """One model on one kind of device."""

    spec: ModelSpec
    card: DeviceCard
    dtype: str
    kv: KVFormat
    expert_imbalance: float
    room_bytes: float  # of one device, weights and KV

    def steps(self, degrees: Degrees) -> LayoutSteps:
        weight_bytes = self.spec.num_parameters * DTYPE_BYTES[self.dtype]
        return layout_steps(
            self.spec, self.card, degrees, self.dtype, self.kv.sequence_bytes, weight_bytes, self.expert_imbalance
        )

    def fits(self, degrees: Degrees, work: Work, num_rows: int) -> bool:
        """Weights and the KV of that many rows, on the fullest device."""
        own, weight_bytes = rank_of(self.spec, degrees, self.dtype)
        each = self.kv.sequence_bytes(own, work.context) / degrees.cp
        return weight_bytes + num_rows / degrees.ep * each <= self.room_bytes


def layouts_of(
    spec: ModelSpec, card: DeviceCard, degrees: Degrees, num_replicas: int, work: Work, *,
    dtype: str, kv: KVFormat, expert_imbalance: float = EXPERT_IMBALANCE, room_share: float = 0.9,
) -> tuple[LayoutFacts, ...]:  # fmt: skip
    """As it is, then with fewer devices to a matrix and as many more replicas. Empty where matrices are not divided, or
    nothing computes in 16 bits. `room_share`: of a device's memory."""
    if degrees.tp == 1 or DTYPE_BYTES[dtype] != 2:
        return ()
    model = _Priced(spec, card, dtype, kv, expert_imbalance, room_share * card.spec.memory_bytes)
    return tuple(_layouts(model, degrees, num_replicas, work))


def _layouts(model: _Priced, degrees: Degrees, num_replicas: int, work: Work) -> Iterator[LayoutFacts]:
    for tp in sorted(divisors(degrees.tp), reverse=True):
        each = msgspec.structs.replace(degrees, tp=tp)
        count = num_replicas * degrees.tp // tp
        rows = max(1, round(work.num_rows * tp / degrees.tp))
        layout = Layout(degrees=each, replicas=count)
        try:
            fits = model.fits(each, work, rows)
        except UnsupportedError:
            continue  # its heads do not divide so
        cost = _cost(model, each, work, rows)
        whole = _cost(model, msgspec.structs.replace(degrees, tp=1), work, rows)
        leaves = layout.crosses(model.card.per_node)["tp"]
        yield LayoutFacts(
            name=str(layout),
            options={"tensor_parallel_size": tp, "replicas": count},
            tp=tp,
            num_replicas=count,
            link="the network" if leaves else model.card.link,
            hops=leaves or model.card.link.lower().startswith("pcie"),
            fits=fits,
            num_rows=rows,
            step_ms=cost.step_ms,
            step_talk_ms=cost.step_talk_ms,
            request_ms=cost.ms,
            talk_ms=cost.talk_ms,
            saved_ms=whole.ms - (cost.ms - cost.talk_ms),
            tier="first principles",
        )


@dataclass(frozen=True)
class _Cost:
    """Milliseconds of one replica."""

    ms: float  # a request: its prompt, and its part of the decode steps it is in
    talk_ms: float  # all-reduces of it
    step_ms: float
    step_talk_ms: float


def _cost(model: _Priced, degrees: Degrees, work: Work, num_rows: int) -> _Cost:
    steps = model.steps(degrees)
    chunk = max(1, min(work.chunk, round(work.num_prompt)))
    prompt, decode = prefill_shape(chunk), decode_shape(num_rows, work.context)
    num_chunks, num_steps = work.num_prompt / chunk, work.num_output / num_rows

    def request(ms: Callable[..., float], *more: str) -> float:
        return num_chunks * ms(prompt, *more) + num_steps * ms(decode, *more)

    return _Cost(
        ms=request(steps.round_ms),
        talk_ms=request(steps.spent_ms, "tp"),
        step_ms=steps.round_ms(decode),
        step_talk_ms=steps.spent_ms(decode, "tp"),
    )
