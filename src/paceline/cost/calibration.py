"""What was timed on one machine, for one model in one form, as a value that is stored as JSON.

A calibration belongs to a key: device, model, numeric types, kernels, versions. Times of another key say nothing here,
so a file of another key is refused with what differs. The file holds the timed steps themselves besides the prices
fitted to them; whoever doubts the fit can repeat it. Reading and writing files is left to the caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import median, quantiles

import msgspec

from paceline.contracts.ports import Prices, StepShape
from paceline.cost.linear import LinearStepCost
from paceline.cost.model import StepCost
from paceline.errors import ConfigError

FORMAT = 1
_HINT = "run `paceline calibrate` here, with the options that serve will have"


class CalibrationKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's time depends on, beside the step."""

    device: str  # kind and name
    num_cores: int
    num_threads: int
    model: str  # as the user called it; the revision tells
    revision: str
    dtype: str
    weights: str  # how they are kept: bytes of all of them, and of which form
    activations: str
    kv_bytes_per_token: float
    numerics: str
    kernels: str
    paceline: str  # version
    torch: str  # version

    @property
    def digest(self) -> str:
        """12 hexadecimal digits, the same for equal keys. The name a model goes by is not in it."""
        named = msgspec.structs.replace(self, model="")
        return hashlib.blake2b(msgspec.json.encode(named, order="sorted"), digest_size=6).hexdigest()


class TimedCell(msgspec.Struct, frozen=True, kw_only=True):
    """One size of step, timed several times."""

    cell: str  # for people
    shape: StepShape
    ms: float  # median
    spread: float  # relative: half the middle half of the tries, over the median
    tries: int
    held_out: bool = False  # not fitted
    predicted_ms: float = 0.0  # by the fitted prices

    @classmethod
    def of(
        cls, cell: str, shape: StepShape, tries: Sequence[float], *, held_out: bool = False, predicted_ms: float = 0.0
    ) -> TimedCell:
        """From the milliseconds of its tries, one or more."""
        middle = median(tries)
        low, _, high = quantiles(tries, n=4, method="inclusive") if len(tries) > 1 else (middle,) * 3
        return cls(
            cell=cell,
            shape=shape,
            ms=middle,
            spread=(high - low) / 2 / middle,
            tries=len(tries),
            held_out=held_out,
            predicted_ms=predicted_ms,
        )

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was timed."""
        return abs(self.predicted_ms - self.ms) / self.ms


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration."""

    key: CalibrationKey
    prices: Prices
    cells: tuple[TimedCell, ...]
    probe_ms: tuple[float, float]  # of the probe cell before and after
    load_gbps: float  # weights as they were loaded for this, from disk or from memory that held the file
    gflops: float  # of the device, as probed
    memory_gbps: float
    attempts: int = 1  # how often the grid was timed until the machine held still
    served: int = 0  # steps of a server that served, from which prices and cells are; 0: the grid alone
    request_ms: float = 0.0  # from client to engine and back, in the median: what a simulated answer is late by
    format: int = FORMAT

    @property
    def drift(self) -> float:
        """By how much the machine changed while it was timed, relative."""
        before, after = self.probe_ms
        return abs(after - before) / before

    def cost(self) -> StepCost:
        """A model that knows what was timed, and goes on learning."""
        return StepCost(**self.prices)  # type: ignore[arg-type]

    def errors(self, *, held_out: bool) -> list[float]:
        """Relative errors of the fit, smallest first."""
        return sorted(cell.error for cell in self.cells if cell.held_out is held_out)

    def check(self, key: CalibrationKey) -> None:
        """Raise ConfigError, naming what differs, when this was not timed under `key`."""
        here = msgspec.structs.replace(key, model=self.key.model)
        differ = [name for name in key.__struct_fields__ if getattr(self.key, name) != getattr(here, name)]
        if differ:
            raise ConfigError(
                "this calibration is of something else",
                seen=", ".join(f"{name} {getattr(self.key, name)}" for name in differ),
                expected=", ".join(f"{name} {getattr(here, name)}" for name in differ),
                fix=_HINT,
            )


def encode_calibration(calibration: Calibration) -> bytes:
    """JSON, indented, for people as well."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n"


def decode_calibration(data: bytes) -> Calibration:
    """The inverse of `encode_calibration`. Raises ConfigError for what is no calibration, or one of another version."""
    try:
        found = msgspec.json.decode(data, type=Calibration)
        found.cost()
    except (msgspec.DecodeError, TypeError, ValueError, AssertionError) as error:
        raise ConfigError("this is no calibration file", seen=str(error), fix=_HINT) from None
    if found.format != FORMAT:
        raise ConfigError(
            "the calibration file is of another version", seen=found.format, expected=str(FORMAT), fix=_HINT
        )
    return found


def restore(**prices: float | tuple[float, ...]) -> LinearStepCost | StepCost:
    """The cost model that has these `prices`, as a journal holds them. Raises TypeError for names no model has."""
    kind = StepCost if "weights" in prices else LinearStepCost
    return kind(**prices)  # type: ignore[arg-type]
