"""Which gates are asked for, and their limits. TOML: one table for each gate; unknown keys are refused.

    [ttft]                       # limits come from the SLO of each class unless limit_s is given
    percentile = 0.95

    [goodput]
    min_ratio = 0.97             # to the base run

A gate whose table is absent is not evaluated. `required = false` lets a gate that could not be measured pass by.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import ConfigError

MIN_RATIO = 0.97
MARGIN_POINTS = 2.0


class _Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    required: bool = True  # not measured is then inconclusive for the verdict


class QualityGate(_Gate, frozen=True, kw_only=True):
    margin_points: float = MARGIN_POINTS  # a set may lose so much at most, in percentage points
    sets: tuple[str, ...] = ()  # of these alone; empty: every set that was scored
    max_failed_share: float = 0.02  # of items whose call failed; more makes the set invalid
    max_kl: float | None = None  # nats, upper end of the interval, in every bucket of positions
    min_top1: float | None = None  # share, in every bucket
    max_perplexity_ratio: float | None = None  # candidate / reference


class LatencyGate(_Gate, frozen=True, kw_only=True):
    percentile: float | None = None  # None: the share that each class asks for
    limit_s: float | None = None  # for every class; None: the class's own target
    classes: tuple[str, ...] = ()  # of these alone


class TtftGate(LatencyGate, frozen=True, kw_only=True):
    pass


class TpotGate(LatencyGate, frozen=True, kw_only=True):
    overload: bool = False  # ask the same of the runs at a higher rate (1.2 times the target's)
    icl_max: bool = True  # the longest gap too, where a class has a target for it


class GoodputGate(_Gate, frozen=True, kw_only=True):
    min_ratio: float | None = None  # to the base; None: MIN_RATIO where a base is given, else nothing is asked
    min_rps: float | None = None
    attainment: bool = True  # each class reaches the share its SLO asks


class StabilityGate(_Gate, frozen=True, kw_only=True):
    min_hours: float = 0.0  # a shorter soak is inconclusive
    max_rss_growth_mib_per_day: float = 256.0
    max_fd_growth_per_day: float = 24.0
    max_held_block_growth_per_day: float = 24.0
    max_error_share: float = 0.0  # of requests the client did not end itself
    max_no_token_s: float = 60.0  # the watchdog: no token for so long while requests are in flight


class ColdStartGate(_Gate, frozen=True, kw_only=True):
    cold_s: float | None = None  # p95 of starts with nothing cached
    warm_s: float | None = None
    min_starts: int = 10


class CostGate(_Gate, frozen=True, kw_only=True):
    price_per_hour: float  # of everything the server needs
    max_per_million_good_tokens: float
    currency: str = "USD"


class EnergyGate(_Gate, frozen=True, kw_only=True):
    max_joules_per_good_token: float


class SafetyGate(_Gate, frozen=True, kw_only=True):
    min_schema_share: float | None = None  # valid answers among requests that carried a schema
    min_tool_call_share: float | None = None
    refusal_margin_points: float | None = None  # each error rate may grow by so much; None: MARGIN_POINTS where a set
    # of refusals was scored on both, else nothing is asked
    max_missed_refusal_share: float | None = None
    max_over_refusal_share: float | None = None
    prefix_timing: bool = False  # the probe across tenants must find nothing


class GateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    alpha: float = 0.05  # for claims of "worse", over all gates together (Holm)
    quality: QualityGate | None = None
    ttft: TtftGate | None = None
    tpot: TpotGate | None = None
    goodput: GoodputGate | None = None
    stability: StabilityGate | None = None
    cold_start: ColdStartGate | None = None
    cost: CostGate | None = None
    energy: EnergyGate | None = None
    safety: SafetyGate | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the gates that have a table."""
        return tuple(name for name in GATES if getattr(self, name) is not None)

    def is_required(self, gate: str) -> bool:
        table: _Gate | None = getattr(self, gate)
        return table is not None and table.required


GATES = ("quality", "ttft", "tpot", "goodput", "stability", "cold_start", "cost", "energy", "safety")

_TABLES: dict[str, type[_Gate]] = {
    "quality": QualityGate,
    "ttft": TtftGate,
    "tpot": TpotGate,
    "goodput": GoodputGate,
    "stability": StabilityGate,
    "cold_start": ColdStartGate,
    "cost": CostGate,
    "energy": EnergyGate,
    "safety": SafetyGate,
}


def load_gate_spec(source: Path | dict[str, Any]) -> GateSpec:
    """From a TOML file or a table. A file of an experiment may hold the gates below [gates]. Raises ConfigError."""
    where = "the gates" if isinstance(source, dict) else source.name
    tables = source if isinstance(source, dict) else _read(source)
    tables = tables["gates"] if isinstance(tables.get("gates"), dict) else tables
    _refuse_unknown(tables, ("alpha", *GATES), where)
    for name, kind in _TABLES.items():
        if isinstance(tables.get(name), dict):
            _refuse_unknown(tables[name], kind.__struct_fields__, f"{where}: [{name}]")
    try:
        spec = msgspec.convert(tables, GateSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not spec.asked:
        raise ConfigError(f"{where} asks for no gate", expected=f"a table of {', '.join(GATES)}")
    _check(spec, where)
    return spec


def _check(spec: GateSpec, where: str) -> None:
    for name in ("ttft", "tpot"):
        gate: LatencyGate | None = getattr(spec, name)
        if gate is not None and gate.percentile is not None and not 0.5 <= gate.percentile < 1:
            raise ConfigError(f"{where}: [{name}] percentile", seen=gate.percentile, expected="0.5 up to 1, as 0.95")
    if spec.quality is not None and not 0 < spec.quality.margin_points < 100:
        raise ConfigError(f"{where}: [quality] margin_points", seen=spec.quality.margin_points, expected="0 to 100")
    least = spec.goodput.min_ratio if spec.goodput is not None else None
    if least is not None and not 0 < least <= 1:
        raise ConfigError(f"{where}: [goodput] min_ratio", seen=least, expected="above 0, up to 1, as 0.97")
    points = spec.safety.refusal_margin_points if spec.safety is not None else None
    if points is not None and not 0 < points < 100:
        raise ConfigError(f"{where}: [safety] refusal_margin_points", seen=points, expected="0 to 100")
    if spec.cost is not None and spec.cost.price_per_hour <= 0:
        raise ConfigError(f"{where}: [cost] price_per_hour", seen=spec.cost.price_per_hour, expected="above 0")
    if not 0 < spec.alpha < 0.5:
        raise ConfigError(f"{where}: alpha", seen=spec.alpha, expected="above 0, as 0.05")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError("the gates cannot be read", seen=f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path.name} is not TOML", seen=str(error)) from None


def _refuse_unknown(table: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise ConfigError(
                f"{where}: unknown key",
                seen=key,
                expected=", ".join(known),
                fix=f"did you mean {near[0]}?" if near else "",
            )
