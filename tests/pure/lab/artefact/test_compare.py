"""A/B verdicts between stored runs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.pure.lab.metrics.logs import chunk, info, record

from paceline.contracts.artefact import Chunk, ClientHealth, RequestRecord
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest, SloClass
from paceline.lab.artefact import Comparison, Line, StoredRun, compare_runs, plan_digest, write_run
from paceline.lab.artefact.comparison import figure_words

CHAT = SloClass(ttft_s=0.09, tpot_s=0.02)


def answers(seed: int, *, n: int = 200, slower: float = 1.0, plan_seed: int = 0) -> list[RequestRecord]:
    """n requests of one plan. How hard each request is belongs to the plan; what the server adds is noise of its own,
    alike for neighbours."""
    plan, own = np.random.default_rng(plan_seed), np.random.default_rng(1000 + seed)
    at = np.cumsum(plan.exponential(100.0, n))
    hard = plan.lognormal(0.0, 0.3, n)
    noise = np.empty(n)
    noise[0] = own.normal()
    for i in range(1, n):
        noise[i] = 0.5 * noise[i - 1] + own.normal() * math.sqrt(0.75)
    log = []
    for i in range(n):
        ttft = 60.0 * hard[i] * math.exp(0.1 * noise[i]) * slower
        gap = 12.0 * math.exp(0.05 * own.normal()) * slower
        log.append(record(i, [chunk(at[i] + ttft + k * gap) for k in range(4)], plan=float(at[i]), num_output_asked=4))
    return log


def stored(path: Path, log: list[RequestRecord], *slo: SloClass, **rest: Any) -> StoredRun:
    end = max(r.t_plan_ns for r in log) / 1e6 + 1
    return write_run(path, info(*(slo or (CHAT,)), end=end, **rest), log)


def line(found: Comparison, figure: str) -> Line:
    return next(each for each in found.lines if each.figure == figure)


def test_a_run_against_itself(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", answers(0))
    found = compare_runs(run, run)
    assert found.answer == "no difference shown"
    assert (found.paired, found.num_pairs, found.differences) == (True, 200, ())
    assert [each.figure for each in found.lines][:3] == ["goodput", "attainment", "tokens_per_s"]
    assert {each.figure for each in found.lines[3:]} == {
        f"{term}_{q}" for term in ("ttft", "tpot", "e2e") for q in ("p50", "p95")
    }
    assert all(each.ratio.value == pytest.approx(1.0) for each in found.lines)
    assert all(each.answer == "no difference shown" for each in found.lines)


def test_slower_by_a_fifth_is_worse(tmp_path: Path) -> None:
    a, b = stored(tmp_path / "a", answers(0)), stored(tmp_path / "b", answers(1, slower=1.2))
    found = compare_runs(a, b)
    assert found.answer == "worse"
    assert line(found, "goodput").answer == "worse"
    ttft = line(found, "ttft_p50")
    assert ttft.answer == "worse"
    assert ttft.not_worse == "worse"
    assert ttft.typical is not None
    assert ttft.typical.value == pytest.approx(1.2, abs=0.06)
    assert "worse" in found.sentence
    back = compare_runs(b, a)
    assert back.answer == "better"
    assert line(back, "goodput").ratio.value == pytest.approx(1 / (line(found, "goodput").ratio.value or 1))


def test_failures_cannot_look_fast(tmp_path: Path) -> None:
    """B drops every slow request: its table looks better, its verdict is worse."""
    log = answers(1)
    for r in log:
        if r.chunks[0].t_ns - r.t_plan_ns > 60e6:
            r.outcome = Outcome.REJECTED
    found = compare_runs(stored(tmp_path / "a", answers(0)), stored(tmp_path / "b", log))
    assert found.answer == "worse"
    assert line(found, "ttft_p95").answer == "worse"
    assert line(found, "ttft_p95").b.value is None


def test_other_plans_do_not_pair(tmp_path: Path) -> None:
    a, b = answers(0), answers(1, plan_seed=7, slower=1.5)
    assert plan_digest(info(), a) != plan_digest(info(), b)
    assert plan_digest(info(), a) == plan_digest(info(), list(reversed(answers(5))))
    found = compare_runs(stored(tmp_path / "a", a), stored(tmp_path / "b", b))
    assert not found.paired
    assert "do not pair" in found.reasons[0]
    assert line(found, "ttft_p50").answer == "worse"
    assert line(found, "ttft_p50").typical is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"spec": {"rate": 2}}, "workloads differ"),
        ({"closed_loop": True}, "closed one"),
        ({"client": ClientHealth(offered_rps=10, achieved_rps=5)}, "says nothing about its server"),
    ],
)
def test_not_comparable(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    a, b = stored(tmp_path / "a", answers(0)), stored(tmp_path / "b", answers(1), **change)
    found = compare_runs(a, b)
    assert found.answer == "not comparable"
    assert word in found.sentence
    assert found.lines == ()


def test_other_slo_is_not_comparable(tmp_path: Path) -> None:
    a = stored(tmp_path / "a", answers(0))
    b = stored(tmp_path / "b", answers(1), SloClass(ttft_s=0.2))
    assert compare_runs(a, b).answer == "not comparable"


def test_seed_and_salt_are_no_difference_of_workload(tmp_path: Path) -> None:
    a = stored(tmp_path / "a", answers(0), spec={"rate": 10, "seed": 1, "salt": "x"})
    b = stored(tmp_path / "b", answers(1), spec={"rate": 10, "seed": 2, "salt": "y"})
    assert compare_runs(a, b).answer == "no difference shown"


def test_what_differs_is_told(tmp_path: Path) -> None:
    a = stored(tmp_path / "a", answers(0), config={"kv": {"dtype": "bf16"}, "rows": 8}, fingerprint={"cpu": "x"})
    b = stored(
        tmp_path / "b", answers(1), config={"kv": {"dtype": "fp8"}, "spec": 1, "rows": 8}, fingerprint={"cpu": "y"}
    )
    found = [(d.where, d.key, d.a, d.b) for d in compare_runs(a, b).differences]
    assert found == [
        ("config", "kv.dtype", "bf16", "fp8"),
        ("config", "spec", "(not there)", 1),
        ("fingerprint", "cpu", "x", "y"),
    ]


def test_closed_loops_compare_by_rate(tmp_path: Path) -> None:
    """Twice as fast, so twice as many in the same time: the share that is good is equal, the rate is not."""

    def loop(each: float) -> StoredRun:
        log = [
            record(i, [chunk(i * each + 20), chunk(i * each + 30)], plan=i * each) for i in range(int(20_000 / each))
        ]
        return write_run(tmp_path / str(each), info(CHAT, end=20_000, closed_loop=True), log)

    found = compare_runs(loop(100.0), loop(50.0))
    assert line(found, "goodput").ratio.value == pytest.approx(2.0, rel=0.02)
    assert found.answer == "better"


def test_sessions_pair_by_the_plan_and_compare_by_rate(tmp_path: Path) -> None:
    """Forty sessions of eight turns, one after the other in each. B is slower, so its last turns were never due."""
    end = 10_000.0
    plan = [
        PlannedRequest(id=8 * s + t, stream="s", session=s, turn=t, at_s=s * 0.05 if t == 0 else None)
        for s in range(40)
        for t in range(8)
    ]

    def run(name: str, each: float) -> StoredRun:
        log = []
        for r in plan:
            at = (r.session or 0) * 50 + r.turn * each
            if at < end:
                chunks = [chunk(at + 20), chunk(at + 30)]
                log.append(record(r.id, chunks, plan=at, session=r.session, turn=r.turn))
        return write_run(tmp_path / name, info(CHAT, end=end), log, plan=plan)

    fast, slow = run("a", 1000.0), run("b", 2000.0)
    assert len(slow.records) < len(fast.records)
    found = compare_runs(fast, slow)
    assert (found.paired, found.num_pairs) == (True, len(slow.records))
    assert line(found, "goodput").ratio.value == pytest.approx(len(slow.records) / len(fast.records))


def test_sentences_have_words_for_figures(tmp_path: Path) -> None:
    a, b = stored(tmp_path / "a", answers(0)), stored(tmp_path / "b", answers(1, slower=1.05))
    found = compare_runs(a, b)
    said = " ".join([found.sentence, *(each.sentence for each in found.lines)])
    assert "TTFT p50" in said
    assert line(found, "tokens_per_s").sentence.startswith("Output tokens/s: ")
    assert not re.search(r"_p\d|tokens_per_s|goodput: goodput", said, re.IGNORECASE)
    assert figure_words("quality:sums") == "quality (sums)"


def test_quality_is_paired_by_item(tmp_path: Path) -> None:
    a, b = stored(tmp_path / "a", answers(0)), stored(tmp_path / "b", answers(1))
    for run, wrong in ((a, range(0)), (b, range(40))):
        items = [{"id": str(i), "right": i not in wrong, "text": "skipped"} for i in range(200)]
        (run.path / "quality").mkdir()
        (run.path / "quality" / "sums.json").write_bytes(
            msgspec.json.encode({"set": "sums", "set_sha256": "0", "form": "chat", "items": items})
        )
    found = compare_runs(a, b)
    quality = line(found, "quality:sums")
    assert quality.ratio.value == pytest.approx(-0.2)
    assert (quality.answer, quality.not_worse) == ("worse", "worse")
    assert found.answer == "worse"


def test_thin_percentiles_are_left_out(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", answers(0, n=40))
    assert {each.figure for each in compare_runs(run, run).lines} == {
        "goodput", "attainment", "tokens_per_s", "ttft_p50", "tpot_p50", "e2e_p50",
    }  # fmt: skip


def scaled(log: list[RequestRecord], factor: float) -> list[RequestRecord]:
    """Everything after the planned time takes `factor` as long."""

    def moved(c: Chunk, plan: int) -> Chunk:
        return Chunk(plan + round((c.t_ns - plan) * factor), c.kind, c.num_tokens, c.num_bytes)

    return [msgspec.structs.replace(r, chunks=[moved(c, r.t_plan_ns) for c in r.chunks]) for r in log]


def in_memory(path: Path, log: list[RequestRecord]) -> StoredRun:
    from paceline.lab.metrics import compute

    about = info(CHAT, end=max(r.t_plan_ns for r in log) / 1e6 + 1)
    return StoredRun(path=path, info=about, records=log, metrics=compute(about, log))


def verdicts(path: Path, repeats: int, *, n: int, slower: float) -> list[str]:
    found = []
    for k in range(repeats):
        a = in_memory(path, answers(2 * k, n=n, plan_seed=k))
        b = in_memory(path, scaled(answers(2 * k + 1, n=n, plan_seed=k), slower))
        found.append(compare_runs(a, b, seed=k).answer)
    return found


def test_t16_equal_arms_rarely_differ(tmp_path: Path) -> None:
    """24 A/A comparisons, all nine figures each: at 5 % four or more false verdicts have a probability of 3 %."""
    assert sum(v != "no difference shown" for v in verdicts(tmp_path, 24, n=120, slower=1.0)) <= 3


def test_t16_five_per_cent_slower_is_found(tmp_path: Path) -> None:
    """120 paired requests whose log ratio spreads by 0.14 (TTFT) and 0.07 (TPOT) show 5 % with power above 80 %."""
    found = verdicts(tmp_path, 12, n=120, slower=1.05)
    assert found.count("worse") >= 9
    assert "better" not in found


@pytest.mark.long
def test_t16_in_full(tmp_path: Path) -> None:
    """200 repeats each way: at most 5 % false (plus two standard errors of 200 draws), power at least 80 %."""
    same = verdicts(tmp_path, 200, n=120, slower=1.0)
    assert sum(v != "no difference shown" for v in same) / 200 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)
    slow = verdicts(tmp_path, 200, n=120, slower=1.05)
    assert slow.count("worse") / 200 >= 0.80
