"""`paceline lint` as it is typed: a configuration for a card, stored runs, exit codes; nothing here needs torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.pure.lab.metrics.logs import info, steady_log
from typer.testing import CliRunner, Result

from paceline.assemble.lint import findings_by_node
from paceline.cli.lint import keep_findings
from paceline.cli.main import app
from paceline.contracts.lint import LintResult
from paceline.contracts.workload import SloClass
from paceline.lab.artefact import write_run
from paceline.lab.experiment.results import (
    EdgeResult,
    ExperimentResult,
    NodeResult,
    OptionChange,
    PointResult,
    StartResult,
    write_experiment,
)
from paceline.lab.report import render_report

CONFIG = {
    "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SHORT = """
duration_s = 60
[slo.chat]
ttft_ms = 2000
[[stream]]
class = "chat"
arrival = { kind = "poisson", rate = 0.5 }
input = { kind = "lognormal", p50 = 100, p99 = 180 }
output = { kind = "lognormal", p50 = 20, p99 = 40 }
"""


def typed(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["lint", *map(str, arguments)])


def findings(done: Result) -> dict[str, dict[str, object]]:
    """By code, of `--json`."""
    return {f["code"]: f for result in json.loads(done.stdout) for f in result["findings"]}


@pytest.fixture(scope="module")
def eight_billion(tmp_path_factory) -> Path:
    """A configuration of a model of 8 B parameters, no weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "serve.toml"
    file.write_text(f'profile = "long-context"\n[model]\nmodel = "{folder}"\nload_format = "dummy"\n')
    (folder / "short.toml").write_text(SHORT)
    return file


@pytest.fixture
def run(tmp_path) -> Path:
    """A closed loop with targets, of ten requests."""
    slo = SloClass(ttft_s=1.0)
    folder = tmp_path / "run"
    write_run(folder, info(slo, end=1000.0, closed_loop=True, name="closed"), steady_log(10))
    return folder


def test_a_configuration_for_a_card_and_the_fix_typed_back_in(eight_billion):
    asked = (
        eight_billion,
        "--device",
        "l4",
        "--set",
        "profile=interactive",
        "--slo",
        "tpot=150ms",
        "--fail-on",
        "warning",
    )
    wide = typed(*asked, "--set", "max_num_seqs=256", "--json")
    assert wide.exit_code == 1, wide.output
    fix = findings(wide)["PL101"]["fix"]["options"]
    assert 1 <= fix["max_num_seqs"] < 256
    narrow = typed(*asked, "--set", f"max_num_seqs={fix['max_num_seqs']}", "--json")
    assert narrow.exit_code == 0, narrow.output
    assert "PL101" not in findings(narrow)


def test_lengths_that_do_not_come_and_the_fix(eight_billion):
    asked = (eight_billion, "--device", "l4", "--workload", eight_billion.parent / "short.toml", "--json")
    found = findings(typed(*asked))
    assert found["PL102"]["severity"] == "warning"
    assert {"PL202", "PL203", "PL212"}.isdisjoint(found)
    length = found["PL102"]["fix"]["options"]["expected_context"]
    assert length < 512
    assert "PL102" not in findings(typed(*asked, "--set", f"expected_context={length}"))
    assert typed(*asked, "--fail-on", "warning").exit_code == 1
    assert typed(*asked, "--fail-on", "never").exit_code == 0


def test_two_configurations_side_by_side(eight_billion, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(eight_billion.read_text().replace("[model]", "[cache]\nwatermark = 0.04\n[model]"))
    asked = (other, "--device", "l4", "--against", eight_billion, "--json")
    assert "PL205" not in findings(typed(*asked))
    found = findings(typed(*asked, "--set", "policy=fcfs"))
    assert "kv: cache.watermark" in found["PL205"]["sentence"]


def test_a_run_prints_findings_with_evidence_and_fix(run):
    done = typed(run)
    assert done.exit_code == 0, done.output  # warnings do not fail
    assert "PL203 warning: targets asked of a closed loop" in done.stdout
    assert "fix: arrival" in done.stdout
    assert "(recomputed)" in done.stdout
    assert typed(run / "run.json", "--fail-on", "warning").exit_code == 1
    assert "(recomputed)" not in typed(run, "--no-evidence").stdout


def test_what_cannot_be_is_refused(run, tmp_path, eight_billion):
    for arguments, words in (
        ((run, "--set", "max_num_seqs=3", "--slo", "tpot=1s"), "--set, --slo"),
        ((tmp_path,), "nothing to lint"),
        ((run, "--against", tmp_path), "run.json"),
        ((eight_billion, "--device", "l4", "--set", "model=/no/such/folder"), "/no/such/folder"),
        ((run, "--fail-on", "info"), "--fail-on was not understood"),
        ((eight_billion, "--device", "l5"), "no such device"),
        ((eight_billion, "--device", "l4", "--set", "max_num_seq=3"), "max_num_seqs"),
        (("--explain", "PL999"), "no such rule"),
    ):
        done = typed(*arguments)
        assert done.exit_code == 2, done.output
        assert words in done.stderr


def test_rules_are_listed_and_explained():
    listed = typed("--list").stdout
    assert "PL101  batch too big for its targets" in listed
    assert "PL105  prefix routing made a hot spot" in listed
    assert len(json.loads(typed("--list", "--json").stdout)) == 20
    assert "evidence: " in typed("--explain", "pl204").stdout


def test_findings_lie_beside_a_run_and_on_its_page(run):
    assert 'id="lint"' not in render_report(run).read_text("utf-8")
    (line, *_) = [line for line in keep_findings([run]) if "PL203" in line]
    assert "targets asked of a closed loop" in line
    stored = msgspec.json.decode((run / "lint.json").read_bytes(), type=LintResult)
    assert "PL203" in {finding.code for finding in stored.findings}
    page = render_report(run).read_text("utf-8")
    assert 'id="lint"' in page
    assert "targets asked of a closed loop" in page
    (run / "lint.json").write_text("{")
    assert "lint.json cannot be read" in render_report(run).read_text("utf-8")
    assert "was not looked at" in keep_findings([run / "no"])[0]
    (run / "lint.json.new").mkdir()  # cannot be written: the findings are told all the same
    lines = keep_findings([run])
    assert "no lint.json beside" in lines[0]
    assert any("PL203" in line for line in lines)


def test_an_experiment_is_linted_with_its_runs_and_shows_it_by_step(run, tmp_path):
    folder = tmp_path / "ladder"
    for node in ("base", "wide"):
        shutil.copytree(run, folder / "nodes" / node)
    both = (OptionChange(name="max_num_seqs", group="batch", before=8, after=16),
            OptionChange(name="watermark", group="kv", before=0.01, after=0.02))  # fmt: skip
    start = StartResult(kind="cold", first_token_s=3.0)
    result = ExperimentResult(
        name="ladder",
        nodes=(NodeResult(name="base", starts=(start,)), NodeResult(name="wide", parent="base")),
        points=tuple(PointResult(id=f"{n}/rep0", node=n, path=f"nodes/{n}") for n in ("base", "wide")),
        edges=(EdgeResult(parent="base", child="wide", group="batch", changes=both),),
    )
    write_experiment(folder, result)
    first, *nodes = json.loads(typed(folder, "--start-budget", "1", "--json").stdout)
    assert first["source"] == "experiment"
    assert {f["code"] for f in first["findings"]} == {"PL108", "PL205"}
    assert [node["name"] for node in nodes] == ["base", "wide"]
    by_node = findings_by_node(folder)
    assert "PL205" in dict(by_node["wide"])
    assert "PL203" in dict(by_node["base"])
    (folder / "nodes" / "base" / "run.json").write_text("{")
    by_node = findings_by_node(folder)
    assert "was not looked at" in dict(by_node["base"])["lint"]
    assert {"PL203", "PL205"} <= set(dict(by_node["wide"]))
    page = render_report(folder, findings=by_node).read_text("utf-8")
    assert "was not looked at" in page
    assert typed(folder).exit_code == 2


def test_a_fleet_is_typed_as_a_simulation_has_it(eight_billion, tmp_path):
    short = ("--workload", eight_billion.parent / "short.toml", "--fail-on", "error")
    model = ("--set", "model=llama-3.1-8b", "--set", "load_format=auto", "--set", "profile=interactive", "--device")
    wide = typed(eight_billion, *model, "h100-sxm", *short, "--tensor-parallel-size", "16", "--json")
    assert wide.exit_code == 1, wide.output
    fix = findings(wide)["PL104"]["fix"]["fleet"]
    options = [part for name, value in fix.items() for part in (f"--{name.replace('_', '-')}", value)]
    narrow = typed(eight_billion, *model, "h100-sxm", *short, *options, "--json")
    assert narrow.exit_code == 0, narrow.output
    assert "PL104" not in findings(narrow)
    slow = ("--kv-tier", "nvme=500,0.5,100", "--kv-tier-policy", "always", "--json")
    assert findings(typed(eight_billion, *model, "h100-sxm", *slow))["PL107"]["severity"] == "warning"
    full = ("--speculative", "1.2,1.3,1.3", "--set", "max_num_seqs=256", "--json")
    assert "PL106" in findings(typed(eight_billion, *model, "h100-sxm", *full))
    sheet = tmp_path / "card.toml"
    sheet.write_text(
        'name = "card"\nmemory_gib = 80\nmemory_gbps = 3350\ntflops = 1979\nsource = "sheet"\nlink = "NVLink"\n'
        "link_gbps = 450\n"
    )
    assert findings(typed(eight_billion, *model, sheet, "--json"))["PL207"]["fix"]["device"] == {"tflops": 989}


def test_a_fleet_that_cannot_be_is_refused(run, eight_billion):
    for arguments, words in (
        ((run, "--replicas", "2"), "options of the fleet"),
        ((eight_billion, "--device", "l4", "--speculative", "many"), "--speculative was not understood"),
        ((eight_billion, "--device", "l4", "--kv-tier", "nvme"), "--kv-tier was not understood"),
        ((eight_billion, "--device", "l4", "--kv-tier", "=1,2"), "a tier has no name"),
        ((eight_billion, "--device", "l4", "--router", "nearest"), "no router policy"),
    ):
        done = typed(*arguments)
        assert done.exit_code == 2, done.output
        assert words in done.stderr
