"""`paceline plan` as typed: tables, files, and words that mean nothing."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from paceline.assemble.device_card import find_card
from paceline.assemble.plan import NUM_QUANTILES, Asked, quantiles, read_profile, read_question
from paceline.assemble.plan import plan as make
from paceline.cli.main import app
from paceline.cli.plan import show
from paceline.config import load_config, read_environment
from paceline.errors import ConfigError

CARD = ["--model", "llama-3.1-8b", "--device", "h100-sxm", "--slo", "ttft=500ms,tpot=30ms"]


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


def test_the_answer_the_tables_and_the_files(tmp_path):
    out, html = tmp_path / "serve.toml", tmp_path / "plan.html"
    done = run(
        *CARD, "--devices", "2", "--input", "p50=800,p99=4000,max=8000", "--output", "200", "--price", "3",
        "--acceptance", "1.9,2.7", "--out", str(out), "--html", str(html),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for words in ("DP2", "TP2", "weights", "not taken", "1 lost", "note:", "good requests/s", "speculation", "in time"):
        assert words in done.output
    assert "# simulated: " in out.read_text()
    assert load_config(out).model.max_model_len == 16 * -(-load_config(out).model.max_model_len // 16)
    page = html.read_text()
    assert "Why this layout" in page
    assert "predicted / simulated" in page
    assert 'id="memory"' in page or '"memory"' in page
    assert "max_num_batched_tokens" in page
    assert not re.search(r'(?:src|href)="https?://', page)


def test_the_best_are_simulated_unless_that_is_not_wanted():
    asked = [*CARD, "--input", "200", "--output", "50"]
    plain, one = run(*asked, "--no-verify"), run(*asked, "--verify", "1")
    assert plain.exit_code == one.exit_code == 0, one.output
    assert "imulated" not in plain.output
    words = " ".join(one.output.split())
    assert "the best, simulated" in words
    assert "300 requests of one replica" in words
    assert re.search(r"Simulated at [\d.]+ requests/s: [\d.]+% in time", words)
    assert make(Asked(model="llama-3.1-8b", device="h100-sxm", verify=0)).chosen.simulated is None


def test_a_rate_and_a_plan_that_cannot_be_served(tmp_path):
    done = run("--model", "llama-3.1-70b", "--device", "h100-sxm", "--devices", "8", "--slo", "ttft=2s,tpot=60ms",
               "--rate", "2", "--input", "60", "--no-verify", "--out", str(tmp_path / "serve.toml"),
               "--html", str(tmp_path / "plan.html"))  # fmt: skip
    assert done.exit_code == 2, done.output
    assert "no file for this plan" in done.output
    assert "of 2 asked for" in done.output
    assert not (tmp_path / "serve.toml").exists()
    assert "Why this layout" in (tmp_path / "plan.html").read_text()  # the page is there all the same


def test_nothing_fits(tmp_path):
    out = tmp_path / "serve.toml"
    done = run("--model", "llama-3.1-70b", "--device", "l4", "--slo", "ttft=2s,tpot=60ms", "--out", str(out))
    assert done.exit_code == 1
    assert "nothing fits" in done.stderr
    assert not out.exists()
    assert "No layout of 1 x l4 serves llama-3.1-70b" in done.output


def test_what_is_known_is_listed():
    done = run("--list")
    assert done.exit_code == 0
    for words in ("deepseek-v3", "mi300x", "one way"):
        assert words in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "h100"], "h100-sxm"),
        (["--device", "l4", "--input", "many"], "not a number"),
        (["--device", "l4", "--input", "p50=3"], "were not understood"),
        (["--device", "l4", "--slo", "ttft=1"], "a target was not understood"),
        (["--device", "l4", "--weights", "fp5"], "no such format"),
        (["--device", "l4", "--kv-cache-dtype", "fp8"], "no such type of KV cache"),
        (["--device", "l4", "--profile", "fast"], "no such profile"),
        (["--device", "l4", "--devices", "3", "--nodes", "2"], "do not divide over the nodes"),
        (["--device", "l4", "--price", "-1"], "a price must be 0 or more"),
        (["--device", "l4", "--expert-imbalance", "0.5"], "imbalance"),
        (["--device", "here"], "needs the model's files"),
        (["--device", "here", "--devices", "2"], "this machine is one device"),
        (["--device", "here", "--weights", "fp8"], "as the engine keeps them"),
    ],
)
def test_words_that_mean_nothing_are_refused(arguments, words):
    done = run("--model", "llama-3.1-8b", *arguments)
    assert done.exit_code == 2, done.output
    assert words in done.output


def test_lengths_as_people_write_them(tmp_path):
    assert quantiles("1000", "input").tolist() == [1000]
    lognormal = quantiles("p50=800,p99=6000,max=2000", "input")
    assert lognormal.max() == 2000
    assert np.median(lognormal) == pytest.approx(800, rel=0.02)
    uniform = quantiles("min=10,max=20", "input")
    assert (uniform.min(), uniform.max(), len(uniform)) == (10, 20, NUM_QUANTILES)
    file = tmp_path / "seen.csv"
    file.write_text("when,tokens\n1,5\n2,7\n")
    assert set(quantiles(f"file={file},column=tokens", "input")) == {5, 7}


def test_a_folder_with_sizes_alone_can_be_planned_for(tmp_path):
    sizes = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    folder = tmp_path / "my[" / "x]model"  # no markup of the terminal
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    found = make(Asked(model=str(folder), device="l4", input="20", output="8", slo="ttft=1s,tpot=50ms"))
    assert found.chosen is not None
    assert found.question.kept.weights == "bf16"
    console = Console(file=io.StringIO(), width=400)
    show(console, found)
    assert "my[/x]model" in console.file.getvalue()


def test_codes_of_eight_bits_are_read_by_the_reference_on_a_gpu():
    for kind, tiles in (("int8", True), ("auto", False)):
        asked = Asked(model="llama-3.1-8b", device="l4", kv_cache_dtype=kind)
        assert read_question(asked, read_environment()).kept.reference is tiles


def test_names_are_found():
    assert find_card("l4").spec.name == "l4"
    assert read_profile("batch") == "batch"
    with pytest.raises(ConfigError):
        read_profile("other")
