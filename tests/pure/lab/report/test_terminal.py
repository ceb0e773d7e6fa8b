from __future__ import annotations

import io

import msgspec
from rich.console import Console
from tests.fakes.lab.sample_comparison import COMPARISON
from tests.fakes.lab.sample_runs import EVIL

from paceline.contracts.artefact import Caution
from paceline.lab.load.progress import Progress
from paceline.lab.report.summary import comparison_summary, experiment_summary, print_summary, run_summary, said
from paceline.lab.report.terminal import LiveProgress, plain_line

NOW = Progress(
    elapsed_s=12.3, span_s=60.0, num_planned=360, num_sent=71, num_in_flight=12, num_done=58, num_failed=1,
    rate_rps=5.92, ttft_p50_s=0.21, ttft_p95_s=0.64, tpot_p50_s=0.031, time_left_s=47.7,
)  # fmt: skip


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=140, force_terminal=terminal, color_system=None)


def text(of: Console) -> str:
    return of.file.getvalue().replace("\u00a0", " ")  # type: ignore[attr-defined]


def printed(content) -> str:
    out = console()
    print_summary(content, out)
    return text(out)


def test_a_plain_line_says_it_all():
    assert plain_line(NOW) == (
        "12 s of 60 s: 71 of 360 sent; 5.92 req/s; 12 in flight; 58 done, 1 failed; TTFT p50 210 ms, p95 640 ms; "
        "TPOT p50 31.0 ms; 47.7 s left"
    )
    draining = msgspec.structs.replace(NOW, draining=True, ttft_p50_s=None, tpot_p50_s=None, num_failed=0, span_s=0.0)
    assert plain_line(draining) == "12 s: 71 of 360 sent; 5.92 req/s; 12 in flight; 58 done; draining, 12 left"


def test_off_a_terminal_a_line_every_few_seconds_and_the_last_one():
    out, now = console(), [0.0]
    with LiveProgress("bench [x]", console=out, clock=lambda: now[0]) as show:
        for step in range(12):
            now[0] = float(step)
            show(msgspec.structs.replace(NOW, num_sent=step))
    lines = text(out).splitlines()
    assert [line.split(" of 360")[0].split()[-1] for line in lines] == ["0", "5", "10", "11"]
    assert lines[0].startswith("bench [x]: ")


def test_on_a_terminal_one_block_that_is_drawn_anew():
    out = console(terminal=True)
    with LiveProgress("bench", console=out) as show:
        show(NOW)
        show(msgspec.structs.replace(NOW, num_done=59))
    shown = text(out)
    assert "58 of 360" in shown
    assert "59 of 360" in shown
    assert "\x1b[2K" in shown, "the block is taken away"
    assert shown.rstrip().endswith("47.7 s left")


def test_a_load_that_never_began_says_nothing():
    out = console()
    with LiveProgress("bench", console=out):
        pass
    assert text(out) == ""


def test_the_closing_summary(run):
    shown = printed(run_summary(run.info, run.metrics, run.verdict, "runs/x/report.html"))
    assert shown.startswith("FAIL  The server carries the load")
    for word in (
        "TPOT interactive p95",
        "inconclusive",
        "Goodput",
        "Attainment",
        "background",
        "report runs/x/report.html",
    ):
        assert word in shown
    for caution in run.metrics.cautions:
        assert caution.sentence.split(":")[0] in shown


def test_without_gates_the_sentence_has_the_goodput(run):
    shown = printed(run_summary(run.info, run.metrics))
    assert shown.startswith("smollm2-135m answered ")
    assert "goodput" in shown.splitlines()[0]


def test_words_from_outside_are_neither_markup_nor_commands(run):
    evil = "[red]x[/red] [/] \x1b[31m\x07 " + EVIL
    info = msgspec.structs.replace(run.info, target=msgspec.structs.replace(run.info.target, model=evil))
    groups = tuple(msgspec.structs.replace(g, name=evil) if g.kind == "class" else g for g in run.metrics.groups)
    cautions = (Caution(code="x", sentence=evil),)
    shown = printed(run_summary(info, msgspec.structs.replace(run.metrics, groups=groups, cautions=cautions)))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert shown.count("[red]") >= 3
    assert said("a\x1bb").plain == "a�b"


def test_a_comparison_and_an_experiment_in_short(experiment):
    shown = printed(comparison_summary(COMPARISON, "x.html"))
    assert "TTFT p95" in shown
    assert "0.700 ×" in shown
    assert "One run of each." in shown
    ladder = printed(experiment_summary(experiment, "y.html"))
    assert experiment.answer in ladder
    assert experiment.serve_command in ladder
    assert "3.25 × [3.02, 3.51]" in ladder
