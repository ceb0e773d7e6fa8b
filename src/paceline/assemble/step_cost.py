"""The cost model an engine starts with: what was timed here for this model in this form, or counts and rates.

Calibration files live in `calibrations/` of the home folder, one for each key, named by the model and the key's digest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import paceline
from paceline.assemble.memory import DTYPE_BYTES
from paceline.config import EngineConfig
from paceline.contracts.kv import KVGroupSpec, KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import Calibration, CalibrationKey, StepCost, StepPrior, decode_calibration, encode_calibration
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.runtime.worker import Worker


def step_prior(spec: ModelSpec, device: DeviceSpec, dtype: str, layout: KVLayout, weight_bytes: int) -> StepPrior:
    """Prices from two measured rates of the device, for weights and a KV cache as they are kept."""
    return StepPrior(
        spec,
        device,
        weight_bytes=weight_bytes,
        dtype_bytes=DTYPE_BYTES[dtype],
        kv_dtype_bytes=kv_bytes_per_token(layout.groups) / spec.kv_bytes(1, 1),
    )


def kv_bytes_per_token(groups: Sequence[KVGroupSpec]) -> float:
    """Of all layers that have a cache, with scales and with what pads the shorter groups."""
    return sum(group.bytes_per_block / group.block_size for group in groups)


def calibration_key(
    config: EngineConfig, spec: ModelSpec, device: DeviceSpec, dtype: str, layout: KVLayout, worker: Worker
) -> CalibrationKey:
    """What times of this engine depend on."""
    from paceline.runtime.device import usable_cores

    return CalibrationKey(
        device=f"{device.kind} {device.name}",
        num_cores=device.num_cores,
        num_threads=config.device.num_threads or usable_cores(),
        model=spec.name,
        revision=spec.revision,
        dtype=dtype,
        weights=f"{worker.weight_bytes} bytes, {config.model.quantization}",
        activations=config.model.activation_dtype,
        kv_bytes_per_token=kv_bytes_per_token(layout.groups),
        numerics=config.numerics,
        kernels=kernels_in_use(config, device.kind, dtype),
        paceline=paceline.__version__,
        torch=version("torch"),
    )


def kernels_in_use(config: EngineConfig, kind: str, dtype: str) -> str:
    """Each operation and its kernel on this machine, as far as `limit_isa` lets instructions go. Loads torch."""
    from paceline.runtime.device import DTYPES
    from paceline.runtime.kernels import explain

    return ", ".join(f"{line.op} {line.kernel}" for line in explain(kind, DTYPES[dtype], config.numerics))


def start_cost(home: Path, key: CalibrationKey, prior: StepPrior) -> tuple[StepCost, str]:
    """The model to begin with, and where its prices are from. A file that cannot be used is as none, and is named."""
    counted = "counts and the device's rates; `paceline calibrate` would time steps"
    try:
        found = find_calibration(home, key)
    except ConfigError as error:
        return StepCost.from_prior(prior), f"{counted} again: {error.message} ({error.seen})"
    if found is None:
        return StepCost.from_prior(prior), counted
    return found.cost(), f"{len(found.cells)} sizes of step timed on this machine ({calibration_path(home, key)})"


def calibration_path(home: Path, key: CalibrationKey) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", key.model).strip("-.")[-48:] or "model"
    return home / "calibrations" / f"{name}-{key.digest}.json"


def find_calibration(home: Path, key: CalibrationKey) -> Calibration | None:
    """The calibration of exactly this key, or None. Another name for the same model finds it too. Raises ConfigError
    for a file of that name that is none, or of another key."""
    for path in sorted((home / "calibrations").glob(f"*-{key.digest}.json")):
        found = load_calibration(path)
        found.check(key)
        return found
    return None


def timed_here(
    home: Path, config: EngineConfig, spec: ModelSpec, device: DeviceSpec, dtype: str, *, kernels: str | None = None
) -> Calibration | None:
    """A calibration of this model in this form on this machine, by everything that is known before weights are loaded:
    all of the key but the bytes of weights, and `kernels` where those are known (None: torch would have to be loaded).
    Passes over files that cannot be used."""
    held = kv_format(config.cache.kv_dtype(dtype), spec)
    groups = plan_kv_groups(spec, config.cache.block_size, held.element_bytes, held.scale_bytes)
    threads = config.device.num_threads or (device.num_cores if device.kind == "cpu" else None)
    for path in sorted((home / "calibrations").glob("*.json")):
        try:
            found = load_calibration(path)
        except ConfigError:  # of another version, or broken
            continue
        key = found.key
        same = (
            key.device == f"{device.kind} {device.name}",
            key.num_cores == device.num_cores,
            threads is None or key.num_threads == threads,  # a GPU's steps do not hang on the host's cores
            key.revision == spec.revision,
            key.dtype == dtype,
            key.weights.endswith(f", {config.model.quantization}"),
            key.activations == config.model.activation_dtype,
            key.kv_bytes_per_token == kv_bytes_per_token(groups),
            key.numerics == config.numerics,
            kernels is None or key.kernels == kernels,
            key.paceline == paceline.__version__,
            key.torch == version("torch"),
        )
        if all(same):
            return found
    return None


def as_timed(device: DeviceSpec, timed: Calibration | None) -> DeviceSpec:
    """This device with the rates it had when its steps were timed, while nothing else ran: knobs that follow from rates
    (rows, chunk) are then the same at every start, and in a simulation what they are in the engine."""
    if timed is None:
        return device
    return msgspec.structs.replace(
        device, gflops=timed.gflops, memory_gbps=timed.memory_gbps, source="when steps were timed"
    )


def load_calibration(path: str | Path) -> Calibration:
    """A calibration file, whatever its key. Raises ConfigError when it cannot be read or is none."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError("the calibration file cannot be read", seen=f"{path}: {error.strerror or error}") from None
    try:
        return decode_calibration(data)
    except ConfigError as error:
        raise ConfigError(error.message, seen=f"{path}: {error.seen}", fix=error.fix) from None


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file whole or not at all. Raises ConfigError when that cannot be."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(encode_calibration(calibration))
        part.replace(path)
    except OSError as error:
        raise ConfigError(
            "the calibration file cannot be written",
            seen=f"{path}: {error.strerror or error}",
            fix="set PACELINE_HOME to a folder that may be written to",
        ) from None
