from __future__ import annotations

import msgspec
import pytest
from tests.fakes.lab.sample_experiments import sample_experiment_folder
from tests.fakes.lab.sample_runs import SampleRun
from typer.testing import CliRunner

from paceline.errors import LabError
from paceline.lab.artefact import write_run
from paceline.lab.experiment.results import read_experiment, write_experiment
from paceline.lab.report import render_comparison, render_report
from paceline.lab.report.render import _compared


def stored(run: SampleRun, folder):
    write_run(folder, run.info, run.records, server_metrics=run.server_metrics, verdict=run.verdict)
    return folder


def test_the_page_of_a_run_lies_in_its_folder(run, tmp_path):
    folder = stored(run, tmp_path / "a run")
    assert render_report(folder) == folder / "report.html"
    text = (folder / "report.html").read_text("utf-8")
    assert run.verdict.sentence in text
    assert "paceline bench recompute" in text
    assert not list(folder.glob("*.new"))
    assert render_report(folder, tmp_path / "deep" / "x.html").is_file()


def test_an_experiment_links_to_a_page_of_each_point(ladder_runs, tmp_path):
    folder = sample_experiment_folder(tmp_path / "ladder", ladder_runs)
    text = render_report(folder).read_text("utf-8")
    for node in ("static", "continuous", "chunked-prefill", "prefix-cache"):
        assert (folder / "nodes" / node / "rep0" / "report.html").is_file()
        assert f'href="nodes/{node}/rep0/report.html"' in text
    page = render_comparison(
        folder / "nodes/chunked-prefill/rep0", folder / "nodes/prefix-cache/rep0", tmp_path / "c.html"
    )
    assert "B against A" in page.read_text("utf-8")


def test_a_search_shows_curves_of_the_highest_rate_that_all_nodes_have(ladder_runs, tmp_path):
    folder = sample_experiment_folder(tmp_path / "ladder", ladder_runs)
    result = read_experiment(folder)
    first, *others = result.points
    lower = msgspec.structs.replace(first, id="lower", rate_rps=0.5)
    searched = tuple(
        msgspec.structs.replace(p, purpose="search", rate_rps=rate)
        for p, rate in ((lower, 0.5), (first, 2.0), *((p, 2.0) for p in others))
    )
    write_experiment(folder, msgspec.structs.replace(result, points=searched))
    text = render_report(folder).read_text("utf-8")
    assert 'id="latency"' in text
    assert "the run at 2" in text
    assert _compared(read_experiment(folder)) == {p.id for p in result.points}
    alone = msgspec.structs.replace(result, points=(lower, *others))
    assert _compared(alone) == set()  # no rate in common


def test_a_folder_with_nothing_in_it(tmp_path):
    with pytest.raises(LabError, match="nothing to report") as error:
        render_report(tmp_path)
    assert "run.json" in str(error.value.expected)


def test_the_command_writes_the_page_and_prints_the_summary(run, tmp_path):
    import typer

    from paceline.cli.report import report

    app = typer.Typer()
    app.command()(report)
    folder = stored(run, tmp_path / "r")
    done = CliRunner().invoke(app, [str(folder)])
    assert done.exit_code == 0, done.output
    assert "FAIL" in done.output
    assert (folder / "report.html").is_file()
    done = CliRunner().invoke(app, [str(folder), "--against", str(folder), "--no-summary"])
    assert done.exit_code == 0, done.output
    assert (folder / "comparison.html").is_file()
    assert CliRunner().invoke(app, [str(tmp_path / "none")]).exit_code == 1
