"""What steps cost for a lint: what was timed on this machine, if it was; else counts and the device's rates."""

from __future__ import annotations

from paceline.assemble.memory import DTYPE_BYTES
from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import Calibration, StepPrior
from paceline.planner.lint import Prices


def prices_of(
    spec: ModelSpec, device: DeviceSpec, dtype: str, kv: KVFormat, weight_bytes: int, timed: Calibration | None = None
) -> Prices:
    """`weight_bytes`: as they are held. `timed`: wins over counts."""
    if timed is not None:
        return Prices(cost=timed.cost().frozen(), spec=spec, kv=kv)
    prior = StepPrior(
        spec,
        device,
        weight_bytes=weight_bytes,
        dtype_bytes=DTYPE_BYTES[dtype],
        kv_dtype_bytes=kv.sequence_bytes(spec, 1) / spec.kv_bytes(1, 1),  # scales counted in
    )
    return Prices(cost=prior, spec=spec, kv=kv)
