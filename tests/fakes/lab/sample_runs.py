"""Whole runs for reports: records of `sample_records` with what a stored run says around them. Made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fakes.lab.sample_records import NS, SampleServer, served_records

from paceline.contracts.artefact import (
    Answer,
    ClientHealth,
    Estimate,
    GateResult,
    RequestRecord,
    RunInfo,
    TargetInfo,
    Verdict,
    Window,
)
from paceline.contracts.metrics import RunMetrics
from paceline.contracts.workload import SloClass
from paceline.lab.metrics import compute

SLO = [
    SloClass(name="interactive", ttft_s=0.4, tpot_s=0.04, share=0.95),
    SloClass(name="background", ttft_s=1.5, e2e_s=8.0, share=0.9),
]
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@dataclass
class SampleRun:
    info: RunInfo
    records: list[RequestRecord]
    metrics: RunMetrics
    server_metrics: list[dict[str, Any]]
    verdict: Verdict | None = None


def sample_run(
    *,
    name: str = "interactive and background",
    model: str = "smollm2-135m",
    rate_rps: float = 9.5,
    span_s: float = 75.0,
    seed: int = 1,
    server: SampleServer | None = None,
    judged: bool = True,
) -> SampleRun:
    server = server or SampleServer(kv_tokens=9000)
    records = served_records(server, rate_rps=rate_rps, span_s=span_s, seed=seed)
    info = RunInfo(
        name=name,
        question="Does one replica carry the evening's load?",
        created="2026-01-15T18:30:00Z",
        seed=seed,
        salt="5f2c9a01",
        spec={
            "name": "chat and summaries", "duration_s": span_s,
            "stream": [{"name": "chat", "arrival": {"kind": "poisson", "rate": rate_rps}}],
        },
        slo=SLO,
        span_s=span_s,
        window=Window(start_ns=10 * NS, end_ns=int(span_s * NS)),
        target=TargetInfo(url="http://127.0.0.1:8000", model=model, kind="paceline", version="0.4.0",
                          max_model_len=2048, tokenize="prompt", token_ids=True, chunk_usage=True, final_usage=True,
                          timings=True),
        client=ClientHealth(num_processes=1, offered_rps=rate_rps, achieved_rps=rate_rps * 0.999, lag_p50_ms=0.28,
                            lag_p99_ms=1.9, lag_max_ms=3.1, loop_lag_p99_ms=0.8, cpu_share_max=0.21,
                            cpu_us_per_chunk=41.0, connections_peak=24, calibrated_rps=1790.0,
                            calibrated_lag_p99_ms=1.2),
        config={
            "max_num_seqs": {"value": 24, "group": "batch", "reason": "set by the user"},
            "prefill_chunk_tokens": {"value": 256, "group": "batch", "reason": "100 ms of prefill at 42 GFLOPS"},
            "prefix_cache": {"value": True, "group": "prefix", "reason": "default"},
            "kv_cache_dtype": {"value": "float32", "group": "kv", "reason": "the model's"},
        },
        config_source="resolved",
        cache={"protocol": ["salt", "flush", "prime", "verify"], "flushed": True, "expected_hit": 0.3, "hit": 0.29},
        start={"cold": {"ready_s": 3.21, "first_token_s": 3.44}, "warm": {"ready_s": 1.32, "first_token_s": 1.5}},
        energy={"source": "rapl", "joules": 1834.0, "devices": {"package-0": 1834.0}, "idle_watts": 11.2},
        fingerprint={
            "host": {"cpu": "Example CPU 9000 @ 2.5 GHz", "num_logical_cores": 2, "memory_bytes": 8_335_134_720},
            "versions": {"paceline": "0.4.0", "numpy": "2.1.0", "torch": "2.11.0"},
            "git": {"commit": "0f3c2a9d54e0", "dirty": False},
            "clock": {"monotonic": "clock_gettime(CLOCK_MONOTONIC)", "resolution_s": 1e-9},
            "model": {"name": model, "weights_sha256": "9d8a4e7f0b1c" * 5, "weights_digest": "whole files"},
            "python": "3.11.7",
            "same_host": True,
        },
    )  # fmt: skip
    metrics = compute(info, records)
    verdict = sample_verdict(metrics) if judged else None
    return SampleRun(info, records, metrics, server.scrapes, verdict)


def sample_verdict(metrics: RunMetrics) -> Verdict:
    whole = metrics.whole
    ttft, tpot = whole.latency["ttft"].p95, whole.latency["tpot"].p95
    gates = (
        GateResult(gate="goodput", answer=Answer.PASS, limit=8.0, estimate=whole.goodput_rps,
                   sentence=f"{whole.goodput_rps.value:.1f} good requests a second, where 8 were asked for."),
        GateResult(gate="ttft", subject="interactive p95", answer=Answer.PASS, limit=0.4, estimate=ttft,
                   sentence="The upper bound of p95 is below the limit."),
        GateResult(gate="tpot", subject="interactive p95", answer=Answer.FAIL, limit=0.03, estimate=tpot,
                   sentence="The lower bound of p95 is above the limit."),
        GateResult(gate="quality", subject="basics", answer=Answer.INCONCLUSIVE, limit=-0.02,
                   estimate=Estimate(value=-0.012, lo=-0.05, hi=0.026, n=120, unit="share"),
                   sentence="1.2 points fewer right answers on 120 items; about 900 items would decide.",
                   evidence={"mcnemar_p": 1.0, "only_reference": 6, "only_candidate": 5,
                             "lost": ["arith-04", "units-11", "date-02"]}),
        GateResult(gate="cold_start", answer=Answer.NOT_MEASURED, sentence="The lab did not start this server."),
        GateResult(gate="cost", answer=Answer.PASS, limit=0.9,
                   estimate=Estimate(value=0.62, lo=0.57, hi=0.69, unit="USD"),
                   sentence="0.62 USD per million good tokens at 0.10 USD an hour.", evidence={"price_per_hour": 0.1}),
    )  # fmt: skip
    return Verdict(
        answer=Answer.FAIL,
        sentence="The server carries the load, but interactive tokens come too slowly: TPOT p95 is above 30 ms.",
        gates=gates,
    )
