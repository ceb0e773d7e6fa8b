"""What steps cost for a lint: what was timed on this machine, if it was; else counts and the device's rates."""

from __future__ import annotations

from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.round_prices import RoundPrices
from paceline.assemble.sim_engine import layout_steps
from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import Calibration, StepPrior
from paceline.cost.prior import Degrees
from paceline.planner.devices import DeviceCard
from paceline.planner.lint import Prices


def prices_of(
    spec: ModelSpec, device: DeviceSpec, dtype: str, kv: KVFormat, weight_bytes: int, timed: Calibration | None = None
) -> Prices:
    """`weight_bytes`: as they are held. `timed`: wins over counts."""
    ridge = ridge_of(device, weight_bytes / spec.num_parameters)
    if timed is not None:
        return Prices(cost=timed.cost().frozen(), spec=spec, kv=kv, ridge=ridge)
    prior = StepPrior(
        spec,
        device,
        weight_bytes=weight_bytes,
        dtype_bytes=DTYPE_BYTES[dtype],
        kv_dtype_bytes=kv.sequence_bytes(spec, 1) / spec.kv_bytes(1, 1),  # scales counted in
    )
    return Prices(cost=prior, spec=spec, kv=kv, ridge=ridge)


def divided_prices(
    spec: ModelSpec, own: ModelSpec, card: DeviceCard, degrees: Degrees, dtype: str, kv: KVFormat,
    expert_imbalance: float,
) -> Prices:  # fmt: skip
    """Of an engine over several devices. `own`: the part of one of them, whose memory KV is counted in."""
    weight_bytes = spec.num_parameters * DTYPE_BYTES[dtype]
    steps = layout_steps(spec, card, degrees, dtype, kv.sequence_bytes, weight_bytes, expert_imbalance)
    return Prices(cost=RoundPrices(steps), spec=own, kv=kv, ridge=ridge_of(card.spec, DTYPE_BYTES[dtype]))


def ridge_of(device: DeviceSpec, bytes_per_weight: float) -> float:
    """Positions of a step from which multiplying takes as long as reading: 2 W t / F = W bytes / B, so t = F bytes /
    2 B (S. Williams and others, "Roofline", CACM 52(4), 2009)."""
    return device.gflops * bytes_per_weight / (2 * device.memory_gbps)
