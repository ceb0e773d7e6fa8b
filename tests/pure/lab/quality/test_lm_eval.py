"""The harness adapter: what it runs, and what it makes of the samples. A small program stands in for the harness."""

import importlib.util
import sys

import pytest

from paceline.errors import LabError, UnsupportedError
from paceline.lab.quality.lm_eval import read_samples, require_installed, run_lm_eval

STAND_IN = """
import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["--model"] == "local-completions", sys.argv
assert "base_url=http://host/v1/completions" in given["--model_args"]
if given["--tasks"] == "broken":
    sys.exit("no such task: broken")
out = pathlib.Path(given["--output_path"]) / "toy"
out.mkdir(parents=True)
rows = [
    {"doc_id": 0, "doc_hash": "a", "exact_match": 1.0, "resps": [["x"]], "filter": "strict"},
    {"doc_id": 0, "doc_hash": "a", "exact_match": 0.0, "resps": [["x"]], "filter": "flexible"},
    {"doc_id": 1, "doc_hash": "b", "exact_match": 0.0, "resps": [["y"]], "filter": "strict"},
]
(out / "samples_words_2026.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
other = "samples_words_few_2026-01-31T10-00-00.000001.jsonl"  # of another task, and newer
(out / other).write_text(json.dumps({"doc_id": 7, "exact_match": 1.0}))
"""


@pytest.fixture
def environment(tmp_path):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "lm_eval.py").write_text(STAND_IN)
    return {"PYTHONPATH": str(folder)}


def test_samples_become_a_score_that_pairs(tmp_path, environment):
    out = tmp_path / "out"
    (found,) = run_lm_eval("http://host/v1", "toy", ["words"], out, python=sys.executable, environment=environment)
    assert [(item.id, item.right) for item in found.items] == [("0", True), ("1", False)]
    assert (found.set, found.form, found.accuracy.value) == ("words", "lm-eval", 0.5)
    assert found.items[0].output_sha256 != found.items[1].output_sha256


def test_a_harness_that_fails_or_leaves_nothing_is_an_error(tmp_path, environment):
    with pytest.raises(LabError, match="no such task"):
        run_lm_eval("http://host", "toy", ["broken"], tmp_path, python=sys.executable, environment=environment)
    with pytest.raises(LabError, match="no samples"):
        read_samples("words", tmp_path, "toy")


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm_eval is installed here")
def test_without_the_harness_the_error_says_how_to_get_it():
    with pytest.raises(UnsupportedError, match="not installed") as caught:
        require_installed()
    assert "lm-eval[api]" in caught.value.fix
