"""A server that is up, as a lint's facts: what it resolved and measured, and the classes that it promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline import hub
from paceline.assemble.files import find_files
from paceline.assemble.lint.configuration import engine_facts, is_quantised, why_widened
from paceline.assemble.lint.prices import prices_of
from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.step_cost import timed_here
from paceline.config import EngineConfig, read_environment
from paceline.contracts.kv import kv_format
from paceline.contracts.lint import LintResult
from paceline.contracts.specs import DeviceSpec
from paceline.contracts.workload import SloClass
from paceline.planner.lint import Facts, WeightFacts, lint

if TYPE_CHECKING:
    from paceline.server.tenancy.classes import ServiceClass


def lint_server(config: EngineConfig, report: Mapping[str, Any], classes: Mapping[str, ServiceClass]) -> LintResult:
    """`report`: `ServerState.report`. `classes`: all that there are. Loads no torch."""
    environment = read_environment()
    spec = hub.describe(find_files(config, environment))
    device, dtype = DeviceSpec(**report["device"]), str(report["dtype"])
    knobs = {row["name"]: row["value"] for row in report["knobs"]}
    held = int(report.get("weight_bytes") or spec.num_parameters * DTYPE_BYTES[dtype])
    weights = None
    if spec.weight_bytes and is_quantised(spec.weight_dtype):
        why, instead = why_widened(config, dtype)
        weights = WeightFacts(
            stored=spec.weight_dtype, stored_bytes=spec.weight_bytes, held_bytes=held, why=why, instead=instead
        )
    kv = kv_format(config.cache.kv_dtype(dtype), spec)
    timed = timed_here(environment.home, config, spec, device, dtype)
    knobs["max_model_len"] = int(report["max_model_len"])  # memory may have lowered it
    return lint(
        Facts(
            source="config",
            name=config.model.model,
            engine=engine_facts(config, spec.num_parameters * DTYPE_BYTES[dtype], device, knobs, weights),
            prices=prices_of(spec, device, dtype, kv, held, timed),
            slo=tuple(_targets(one) for one in meant(classes)),
        )
    )


def _targets(one: ServiceClass) -> SloClass:
    return SloClass(name=one.name, ttft_s=one.slo.ttft_s, tpot_s=one.slo.tpot_s, e2e_s=one.slo.e2e_s)


def meant(classes: Mapping[str, ServiceClass]) -> list[ServiceClass]:
    """Classes whose targets the operator means: those of the tenants file, and the one that a request has which names
    none. The other built-in ones are offers."""
    from paceline.server.tenancy.classes import BUILT_IN_CLASSES, DEFAULT_CLASS

    return [one for name, one in classes.items() if name == DEFAULT_CLASS or one is not BUILT_IN_CLASSES.get(name)]
