"""What steps cost for a lint: what was timed on this machine, if it was; else counts and the device's rates."""

from __future__ import annotations

from pathlib import Path

import paceline
from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.step_cost import load_calibration
from paceline.config import EngineConfig
from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import Calibration, StepPrior
from paceline.errors import ConfigError
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


def timed_here(
    home: Path, config: EngineConfig, spec: ModelSpec, device: DeviceSpec, dtype: str, kv: KVFormat
) -> Calibration | None:
    """A calibration of this model in this form on this machine, by everything that is known before weights are loaded.
    Which kernels it was timed with is not; the versions are."""
    for path in sorted((home / "calibrations").glob("*.json")):
        try:
            found = load_calibration(path)
        except ConfigError:  # of another version
            continue
        key = found.key
        same = (
            key.revision == spec.revision,
            key.device == f"{device.kind} {device.name}",
            key.num_cores == device.num_cores,
            key.num_threads == (config.device.num_threads or device.num_cores),
            key.dtype == dtype,
            key.weights.endswith(f", {config.model.quantization}"),
            key.activations == config.model.activation_dtype,
            key.kv_bytes_per_token == kv.sequence_bytes(spec, 1),
            key.numerics == config.numerics,
            key.paceline == paceline.__version__,
        )
        if all(same):
            return found
    return None
