"""Small worlds for rules: a device with two prices, workloads as their users write them, runs of a made-up server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tests.fakes.lab.sample_records import NS, SampleServer
from tests.pure.lab.metrics.logs import info

from paceline.assemble.lint.load import load_facts
from paceline.assemble.lint.stored import run_facts
from paceline.contracts.artefact import RequestRecord, RunInfo, TargetInfo, Window
from paceline.contracts.kv import KVFormat
from paceline.contracts.lint import Finding
from paceline.contracts.ports import StepShape
from paceline.contracts.specs import LayerSpec, ModelSpec
from paceline.contracts.workload import SloClass
from paceline.cost.estimate import Estimate
from paceline.lab.artefact import StoredRun
from paceline.lab.metrics import compute
from paceline.lab.workload import load_spec
from paceline.planner.lint import EngineFacts, Facts, LoadFacts, Prices, lint

SPEC = ModelSpec(
    family="llama", name="m", revision="r", vocab_size=64, hidden_size=32, intermediate_size=48, num_heads=4,
    num_kv_heads=2, head_dim=8, layers=(LayerSpec(),), max_model_len=4096,
)  # fmt: skip
KV_PER_TOKEN = 2 * 2 * 8 * 4  # bytes, of SPEC in float32


class TwoPrices:
    """10 ms a step and 2 ms a position; 0.5 ms a token of a prompt. The interval is a tenth to each side."""

    def estimate(self, shape: StepShape) -> Estimate:
        ms = 10.0 + 2.0 * max(shape.num_rows, shape.num_tokens)
        return Estimate(value=ms, lo=0.9 * ms, hi=1.1 * ms, tier="interpolated", why="made up")

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        return 0.5 * (num_tokens - num_cached)


PRICES = Prices(cost=TwoPrices(), spec=SPEC, kv=KVFormat(4))


def config(load: LoadFacts | None = None, slo: tuple[SloClass, ...] = (), **more: Any) -> Facts:
    """A configuration on the device of two prices. Fields of EngineFacts are set as `engine`."""
    engine = {"max_num_seqs": 16, "max_model_len": 4096, "expected_context": 2048, "prefix_caching": True,
              "kv_room_bytes": 1 << 30, **more.pop("engine", {})}  # fmt: skip
    return Facts(source="config", name="c", engine=EngineFacts(**engine), prices=PRICES, slo=slo, load=load, **more)


def workload(**changes: Any) -> LoadFacts:
    """A minute of one open stream; keys of the stream are `arrival`, `input`, `output`, `prefix`, `turns`."""
    stream = {"arrival": {"kind": "poisson", "rate": 4.0}, "input": LOGNORMAL, "output": LOGNORMAL}
    stream |= {key: changes.pop(key) for key in ("arrival", "input", "output", "prefix", "turns") if key in changes}
    spec = {"name": "w", "stream": [stream], **({} if "num_requests" in changes else {"duration_s": 60.0}), **changes}
    return load_facts(load_spec(spec))


LOGNORMAL = {"kind": "lognormal", "p50": 40, "p99": 160}


def found(facts: Facts, code: str) -> list[Finding]:
    """Findings of one rule, which must have been judged."""
    result = lint(facts)
    assert code in result.judged, result.skipped.get(code)
    return [finding for finding in result.findings if finding.code == code]


def stored(
    records: list[RequestRecord], head: RunInfo, server_metrics: list[dict[str, Any]] | None = None
) -> StoredRun:
    return StoredRun(
        path=Path("runs") / head.name,
        info=head,
        records=records,
        metrics=compute(head, records),
        server_metrics=server_metrics or [],
    )


def run(records: list[RequestRecord], *slo: SloClass, end: float = 60_000.0, **head: Any) -> Facts:
    """Facts of a hand-written log; `end` of the window in milliseconds."""
    return run_facts(stored(records, info(*slo, end=end, **head)))


def served(
    server: SampleServer, *slo: SloClass, rate_rps: float = 6.0, num_requests: int = 240,
    lengths: tuple[int, int] = (32, 24), config: dict[str, Any] | None = None,
    server_says: dict[str, Any] | None = None,
) -> Facts:  # fmt: skip
    """A run against the made-up server: requests of one length at even gaps."""
    every = int(NS / rate_rps)
    records = [
        RequestRecord(id=i, stream="s", t_plan_ns=i * every, num_input_asked=lengths[0], num_output_asked=lengths[1])
        for i in range(num_requests)
    ]
    server = replace(server, scrapes=[])  # it has not served yet
    server.serve(records, seed=3)
    head = RunInfo(
        name="made-up",
        slo=list(slo),
        salt="s",
        span_s=num_requests * every / NS,
        window=Window(start_ns=0, end_ns=num_requests * every),
        target=TargetInfo(url="http://127.0.0.1:1", model="m"),
        config=config or {},
        fingerprint={"server": server_says or {}},
    )
    return run_facts(stored(records, head, server.scrapes))


def with_engine(facts: Facts, **changes: Any) -> Facts:
    """The same configuration with a fix's options."""
    assert facts.engine is not None
    return msgspec.structs.replace(facts, engine=msgspec.structs.replace(facts.engine, **changes))
