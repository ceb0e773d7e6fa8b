"""A whole experiment for reports: a ladder of four configurations on the made-up server. Made up, not measured."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.lab.sample_records import SampleServer
from tests.fakes.lab.sample_runs import SLO, SampleRun, sample_run

from paceline.contracts.artefact import Answer, Caution, Estimate, GateResult, Verdict
from paceline.lab.artefact import write_run
from paceline.lab.experiment.results import (
    EdgeResult,
    ExperimentResult,
    NodeResult,
    OptionChange,
    PointResult,
    RateLevel,
    RateResult,
    Ratio,
    StartResult,
    write_experiment,
)

RATE_RPS = 6.0
# name, parent, group, option, before, after, highest rate that held, lowest that did not
_NODES = (
    ("static", None, None, "", None, None, 2.0, 2.5),
    ("continuous", "static", "batch", "max_wait_ms", 400, 0, 6.5, 7.0),
    ("chunked-prefill", "continuous", "batch", "prefill_chunk_tokens", 2048, 256, 7.5, 8.0),
    ("prefix-cache", "chunked-prefill", "prefix", "prefix_cache", False, True, 10.5, 11.5),
)
_SERVERS = {
    "static": SampleServer(static_batch=True, prefill_budget=2048, prefix_cache=False),
    "continuous": SampleServer(prefill_budget=2048, prefix_cache=False),
    "chunked-prefill": SampleServer(prefix_cache=False),
    "prefix-cache": SampleServer(),
}


def sample_runs() -> dict[str, SampleRun]:
    """One run of each node, all asked the same requests."""
    return {
        name: sample_run(name=name, rate_rps=RATE_RPS, span_s=60.0, seed=5, server=server, judged=False)
        for name, server in _SERVERS.items()
    }


def sample_experiment(runs: dict[str, SampleRun]) -> ExperimentResult:
    nodes, points, edges = [], [], []
    for name, parent, group, option, before, after, held, failed in _NODES:
        whole = runs[name].metrics.whole
        figures = {
            "goodput_rps": whole.goodput_rps, "attainment": whole.attainment,
            "output_tokens_per_s": runs[name].metrics.output_tokens_per_s, "ttft_p50_s": whole.latency["ttft"].p50,
            "ttft_p95_s": whole.latency["ttft"].p95, "tpot_p95_s": whole.latency["tpot"].p95,
            "prefix_hit": whole.prefix_hit,
        }  # fmt: skip
        options = {} if parent is None else {option: after}
        starts = (
            StartResult(kind="cold", port_open_s=0.8, listed_s=2.9, ready_s=3.0, first_token_s=3.2),
            StartResult(kind="warm", port_open_s=0.7, listed_s=1.2, ready_s=1.3, first_token_s=1.5),
        )
        nodes.append(
            NodeResult(
                name=name, parent=parent, group=group, change=options, options={"max_num_seqs": 24, **options},
                config={"max_num_seqs": 24, "dtype": "float32", **options}, config_source="resolved",
                command=("paceline", "serve", "smollm2-135m"), starts=starts, figures=figures, rate=_rate(held, failed),
            )
        )  # fmt: skip
        points.append(
            PointResult(
                id=f"{name}/rep0", node=name, order=len(points), path=f"nodes/{name}/rep0", seed=5, rate_rps=RATE_RPS,
                num_requests=whole.num_requests, num_good=round((whole.attainment.value or 0) * whole.num_requests),
                figures=figures, wall_s=61.0, started="2026-01-15T18:30:00Z",
            )
        )  # fmt: skip
        if parent is not None:
            edges.append(_edge(parent, name, str(group), option, before, after, held, runs))
    return ExperimentResult(
        name="small-ladder",
        question="What does each step give on two cores?",
        answer="Continuous batching and the prefix cache pay: prefix-cache holds 10.5 req/s within the SLO, static 2.",
        status="complete",
        created="2026-01-15T18:30:00Z",
        spec={"name": "small-ladder", "repeats": 1, "margin": 0.03},
        workload=runs["static"].info.spec,
        slo=tuple(SLO),
        decides="max_rate_rps",
        fingerprint=runs["static"].info.fingerprint,
        nodes=tuple(nodes),
        points=tuple(points),
        edges=tuple(edges),
        best="prefix-cache",
        best_sentence="prefix-cache carries the highest rate of all that were measured.",
        serve_command="paceline serve smollm2-135m --max-num-seqs 24 --prefill-chunk-tokens 256 --prefix-cache",
        cautions=(Caution(code="one_repeat", sentence="Each configuration was measured once."),),
        measured_s=244.0,
    )  # fmt: skip


def _rate(held: float, failed: float) -> RateResult:
    levels = tuple(_level(rate, held) for rate in sorted({1.0, held / 2, held, failed, failed * 1.3, failed * 1.7}))
    return RateResult(
        share=0.95, highest_pass_rps=held, lowest_fail_rps=failed, cliff=held < 3,
        max_rate_rps=Estimate(value=(held + failed) / 2, lo=held, hi=failed, unit="req/s", method="bracket"),
        goodput_at_max_rps=Estimate(value=held * 0.96, lo=held * 0.94, hi=held * 0.98, unit="req/s"), levels=levels,
    )  # fmt: skip


def _level(rate: float, held: float) -> RateLevel:
    share = 0.985 if rate <= held * 0.7 else 0.962 if rate <= held else max(0.05, 0.93 - 1.3 * (rate / held - 1))
    low, high = max(0.0, share - 0.03), min(1.0, share + 0.015)
    num = int(rate * 50)
    return RateLevel(
        rate_rps=rate, num_points=1, num_requests=num, num_good=int(share * num), holds=share >= 0.95,
        attainment=Estimate(value=share, lo=low, hi=high, n=num),
        goodput_rps=Estimate(value=share * rate, lo=low * rate, hi=high * rate, n=num, unit="req/s"),
    )  # fmt: skip


def _edge(
    parent: str,
    name: str,
    group: str,
    option: str,
    before: object,
    after: object,
    held: float,
    runs: dict[str, SampleRun],
) -> EdgeResult:
    gain = held / {"continuous": 2.0, "chunked-prefill": 6.5, "prefix-cache": 7.5}[name]
    ratios = [
        Ratio(figure="max_rate_rps", parent=held / gain, child=held, answer="better",
              ratio=Estimate(value=gain, lo=gain * 0.93, hi=gain * 1.08, unit="x"),
              sentence=f"the highest rate within the SLO is {gain:.2f} times that of {parent}"),
    ]  # fmt: skip
    for figure, term in (("ttft_p95_s", "ttft"), ("tpot_p95_s", "tpot")):
        a, b = (runs[node].metrics.whole.latency[term].p95.value or 1.0 for node in (parent, name))
        ratio = b / a
        answer = "better" if ratio < 0.93 else "worse" if ratio > 1.07 else "inconclusive"
        ratios.append(
            Ratio(
                figure=figure,
                parent=a,
                child=b,
                answer=answer,
                ratio=Estimate(value=ratio, lo=ratio * 0.93, hi=ratio * 1.07, unit="x"),
            )
        )
    changes = [OptionChange(name=option, group=group, before=before, after=after)]
    if name == "continuous":
        changes.append(OptionChange(name="max_batch_tokens", group=group, before=24, after=2048, asked=False))
    gate = GateResult(gate="goodput", answer=Answer.PASS, limit=0.97, estimate=ratios[0].ratio,
                      sentence=f"goodput is {gain:.2f} times that of {parent}, at least 0.97 is asked")  # fmt: skip
    return EdgeResult(
        parent=parent, child=name, group=group, changes=tuple(changes), ratios=tuple(ratios), answer="better",
        sentence=f"{name} is better than {parent}: {gain:.2f} times the highest rate within the SLO.",
        verdict=Verdict(answer=Answer.PASS, sentence="Every gate passes.", gates=(gate,)),
    )  # fmt: skip


def sample_experiment_folder(folder: Path, runs: dict[str, SampleRun]) -> Path:
    """As `paceline tune` leaves it."""
    result = sample_experiment(runs)
    for point in result.points:
        run = runs[point.node]
        write_run(folder / point.path, run.info, run.records, server_metrics=run.server_metrics)
    folder.mkdir(parents=True, exist_ok=True)
    write_experiment(folder, result)
    return folder
