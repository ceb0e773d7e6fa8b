"""Targets as people write them: tables in a spec, `ttft=1s,tpot=60ms` on a command line."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from paceline.contracts.slo import TARGETS, parse_times
from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError
from paceline.lab.workload.spec import SloSpec, WorkloadSpec
from paceline.lab.workload.unknown import refuse_unknown

_TERMS = (*TARGETS, "ttfa", "icl_max")
_SHARE = re.compile(r"(?<![^,])\s*share\s*=\s*([01]?\.?\d+)\s*(?![^,])")
STREAMED_TERMS = ("ttft_s", "tpot_s", "ttfa_s", "icl_max_s")


def parse_slo(text: str, name: str = "default") -> SloClass:
    """A class from "ttft=1s,tpot=60ms,e2e=10s,share=0.9". Times need a unit: s or ms. ConfigError otherwise."""
    shares = _SHARE.findall(text)
    times = parse_times(_SHARE.sub("", text), _TERMS, also=", or share=0.95")
    values: dict[str, Any] = {f"{term}_s": seconds for term, seconds in times.items()}
    if shares:
        values["share"] = float(shares[-1])
    slo = SloClass(name=name, **values)
    if not 0 < slo.share <= 1:
        raise ConfigError("share must lie between 0 and 1", seen=slo.share)
    return slo


def with_slo(spec: WorkloadSpec, slo: SloClass) -> WorkloadSpec:
    """The same load with these targets for every class it uses. A class of requests that are not streamed keeps only
    the e2e target. Validators stay each class's own."""
    unstreamed = {s.unstreamed_class or s.slo_class for s in spec.streams if s.streaming_share < 1}
    names = dict.fromkeys(n for s in spec.streams for n in (s.slo_class, s.unstreamed_class) if n is not None)
    classes: dict[str, SloClass] = {}
    for name in names:
        before = spec.slo.get(name, slo)
        terms = dict.fromkeys(STREAMED_TERMS) if name in unstreamed else {}
        classes[name] = msgspec.structs.replace(slo, name=name, validators=before.validators or slo.validators, **terms)
    return msgspec.structs.replace(spec, slo=classes)


def slo_class(name: str, terms: Any) -> dict[str, Any]:
    """Fields of a `SloClass` from the table [slo.NAME]. ConfigError for an unknown term, or one given twice."""
    refuse_unknown(terms, SloSpec, f"slo.{name}")
    try:
        written = msgspec.convert(terms, SloSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"slo.{name} has a wrong value", seen=str(error)) from None
    if written.name not in (None, name):
        raise ConfigError(f"slo.{name} calls itself {written.name}", fix="leave name out")
    values: dict[str, Any] = {"name": name, "share": written.share, "validators": list(written.validators)}
    for term in _TERMS:
        ms, s = getattr(written, f"{term}_ms"), getattr(written, f"{term}_s")
        if ms is not None and s is not None:
            raise ConfigError(f"slo.{name} gives {term} twice", seen=f"{term}_ms and {term}_s", fix="leave one out")
        if ms is not None or s is not None:
            values[f"{term}_s"] = s if s is not None else ms / 1000
    return values
