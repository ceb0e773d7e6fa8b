"""What a plan is asked: a model, devices, requests, targets and a price, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from paceline.config import Profile
from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import ModelSpec
from paceline.contracts.workload import SloClass
from paceline.cost.shards import FORMATS
from paceline.errors import ConfigError
from paceline.planner.devices import DeviceCard
from paceline.planner.layout import Fleet
from paceline.planner.step import StepTimes
from paceline.planner.traffic import Traffic

CUDA_ENGINE_BYTES = 1 << 30  # context and libraries of a process on a GPU: assumed, not measured


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device, in bytes."""

    device_bytes: int  # a process could use at most
    available_bytes: int  # free now
    taken_bytes: int = 0  # held already by whoever plans, which the engine would hold instead
    engine_bytes: int = CUDA_ENGINE_BYTES  # an engine process without weights
    compiles: bool = False  # products are compiled on first use and kept


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How weights and cache are held."""

    weights: str = "bf16"  # a name of `cost.shards.FORMATS`
    stored_bytes: int | None = None  # all weights as the engine would hold them, instead of by format; one device only
    dtype: str = "bfloat16"  # that the engine computes in
    dtype_bytes: int = 2  # of activations
    reference: bool = False  # attention by the tiles of the reference numerics
    widened: bool = False  # half precision that is computed in float32
    kv: KVFormat = KVFormat(2)
    kv_cache_dtype: str = "auto"  # the option that asks for `kv`
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.weights not in FORMATS:
            raise ConfigError("no such format of weights", seen=self.weights, expected=", ".join(FORMATS))


@dataclass(frozen=True)
class Question:
    """Everything a plan depends on. The same question gives the same plan."""

    spec: ModelSpec
    card: DeviceCard
    fleet: Fleet
    traffic: Traffic
    slo: SloClass
    kept: Kept = field(default_factory=Kept)
    room: Room | None = None  # None: the whole card, nothing running on it
    price_per_hour: float | None = None  # of one device
    profile: Profile = "interactive"
    times: StepTimes | None = None  # steps of one device, where they were measured
    serve_name: str = ""  # what `paceline serve` calls the model; "" = the spec's name
    expert_imbalance: float = 1.2  # busiest over mean expert rank: assumed until a run measures it
    overflow_risk: float = 0.01  # at most this chance that running sequences want more KV than there is

    @property
    def memory(self) -> Room:
        whole = self.card.spec.memory_bytes
        return self.room or Room(device_bytes=whole, available_bytes=whole)

    @property
    def max_model_len(self) -> int:
        """Longest sequence the plan serves: the longest request there is, in whole blocks, not what the model could."""
        block = self.kept.block_size
        return min(self.spec.max_model_len, -(-self.traffic.longest // block) * block)

    def check(self) -> None:
        """Raise ConfigError for what no layout could change."""
        if self.traffic.longest > self.spec.max_model_len:
            raise ConfigError(
                "requests are longer than the model was made for",
                seen=f"{self.traffic.longest} tokens of input and output",
                expected=f"at most {self.spec.max_model_len}",
                fix="cap the lengths (max=...), or choose a model with a longer context",
            )
        if self.slo.ttft_s is None and self.slo.tpot_s is None:
            raise ConfigError("no target is set: any load would be good", fix="give --slo ttft=...,tpot=...")
        if self.slo.e2e_s is not None or self.slo.ttfa_s is not None or self.slo.icl_max_s is not None:
            raise ConfigError(
                "a plan knows targets for TTFT and TPOT only",
                seen=self.slo.name,
                fix="leave the others out; `paceline bench` measures them",
            )
