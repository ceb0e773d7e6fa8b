"""The experiment's file: read strictly, hashed whole, its graph a tree."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.lab.experiment.runner import check_experiment
from paceline.lab.experiment.spec import load_experiment
from paceline.lab.experiment.workload import given_workload

TEXT = """
duration_s = 5
[experiment]
name = "kv"
repeats = 4
[server]
base = { model = "m", max_num_seqs = 8, env = { A = "1" } }
[graph]
kv8 = { group = "quant", change = { kv_cache_dtype = "fp8" } }
wide = { parent = "kv8", group = "batch", change = { max_num_seqs = 96, env = { B = "2" } } }
[slo]
chat = { ttft_ms = 500 }
[[stream]]
class = "chat"
arrival = { kind = "poisson", rate = 2 }
input = 64
output = 8
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str):
        path = tmp_path / "spec.toml"
        path.write_text(text)
        return path

    return written


def test_the_file_is_an_experiment_and_a_workload(write):
    loaded = load_experiment(write(TEXT))
    spec = loaded.spec
    assert spec.nodes == ("base", "kv8", "wide")
    assert spec.options_of("wide") == {
        "model": "m",
        "max_num_seqs": 96,
        "kv_cache_dtype": "fp8",
        "env": {"A": "1", "B": "2"},
    }
    workload = given_workload(loaded)
    assert workload is not None
    assert workload.classes[0].ttft_s == 0.5


def test_equal_words_have_equal_digests_and_a_change_shows(write):
    first = load_experiment(write(TEXT)).sha256
    assert load_experiment(write("# a comment\n" + TEXT)).sha256 == first
    assert load_experiment(write(TEXT.replace("rate = 2", "rate = 3"))).sha256 != first


def test_a_workload_in_another_file_counts_for_the_digest(write, tmp_path):
    text = 'workload = "load.toml"\n[server]\nbase = { model = "m" }\n'
    (tmp_path / "load.toml").write_text("duration_s = 5\n[[stream]]\narrival = { kind = 'poisson', rate = 1 }\n")
    first = load_experiment(write(text)).sha256
    (tmp_path / "load.toml").write_text("duration_s = 6\n[[stream]]\narrival = { kind = 'poisson', rate = 1 }\n")
    assert load_experiment(write(text)).sha256 != first


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("repeats = 4", "repeat = 4", "did you mean repeats"),
        ("repeats = 4", "repeats = 0", "at least one repeat"),
        ("repeats = 4", 'decides = "goodput"', "did you mean goodput_rps"),
        ("repeats = 4", 'decides = "max_rate_rps"', "not compared by this figure"),
        ('group = "quant"', 'group = "quand"', "no such group"),
        ('parent = "kv8"', 'parent = "kv9"', "did you mean kv8"),
        ("[[stream]]", "[search]\n[[stream]]", ""),
        ("[[stream]]", "[search]\npoints_per_visit = 0\n[[stream]]", "points_per_visit is 1 or more"),
        ("[[stream]]", "[search]\nshare = 95\n[[stream]]", "part of requests"),
        ("[[stream]]", "[search]\nstart_rps = 2\nlowest_rps = 3\n[[stream]]", "rates that cannot be"),
        ("[[stream]]", "[start]\ncold = -1\n[[stream]]", "negative"),
        ("[server]", '[server]\nurl = "http://x"', "URL are made by the lab"),
        ("duration_s = 5", "duration_s = 5\nrates = [1, 0]", "above 0"),
        ("duration_s = 5", 'duration_s = 5\nworkload = "x"', "workload given twice"),
        ('base = { model = "m", max_num_seqs = 8, env = { A = "1" } }', 'kind = "command"', "needs its argv"),
        ("kv8 = {", 'kv8 = { parent = "wide",', "circle"),
        ('change = { kv_cache_dtype = "fp8" }', "change = {}", "changes nothing"),
    ],
)
def test_what_is_wrong_is_named(write, old, new, words):
    assert old in TEXT
    if not words:
        load_experiment(write(TEXT.replace(old, new)))
        return
    with pytest.raises(ConfigError, match=words):
        load_experiment(write(TEXT.replace(old, new)))


def test_no_workload_is_refused():
    with pytest.raises(ConfigError, match="nothing about the workload"):
        load_experiment({"server": {"base": {"model": "m"}}})


def test_an_unknown_workload_is_refused(tmp_path):
    loaded = load_experiment({"workload": "nonsense", "server": {"base": {"model": "m"}}}, tmp_path)
    with pytest.raises(ConfigError, match="no such workload"):
        given_workload(loaded)


def test_a_figure_beside_a_search_is_refused_and_not_dropped(write):
    with pytest.raises(ConfigError, match="decides by its rate"):
        load_experiment(write(TEXT.replace("repeats = 4", 'decides = "ttft_p50_s"') + "[search]\n"))


def test_a_closed_loop_has_no_rate_to_set(write):
    known = {"max_num_seqs": "batch", "kv_cache_dtype": "quant"}
    closed = TEXT.replace('{ kind = "poisson", rate = 2 }', '{ kind = "closed", slots = 2, requests = 4 }')
    closed = closed.replace(', env = { B = "2" }', "")
    for words in ("rates = [1, 2]\n" + closed, closed + "[search]\n"):
        with pytest.raises(ConfigError, match="closed loop"):
            check_experiment(load_experiment(write(words)), known_groups=known)


def test_what_is_not_utf_8_is_said(tmp_path):
    (tmp_path / "spec.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match="not TOML"):
        load_experiment(tmp_path / "spec.toml")
