"""From options to command lines, and back to a line a person can paste."""

from __future__ import annotations

import shlex

import pytest

from paceline.errors import ConfigError
from paceline.lab.experiment.arms import command_argv, launch_of, serve_command, weight_paths
from paceline.lab.experiment.process import paceline_argv
from paceline.lab.experiment.spec import Server

LLAMA = Server(kind="command", argv=("llama-server", "-m", "{model}", "--port", "{port}"), env={"A": "1"})


def test_places_are_filled_and_the_rest_becomes_flags():
    argv = command_argv(
        LLAMA.argv, {"model": "x y.gguf", "-c": 4096, "flash_attn": True, "mlock": False, "lora": ["a", "b"]}
    )
    assert argv[:3] == ("llama-server", "-m", "x y.gguf")
    assert argv[5:] == ("-c", "4096", "--flash-attn", "--lora", "a", "--lora", "b")


def test_environment_of_a_node_comes_on_top(tmp_path):
    launch = launch_of(LLAMA, {"model": "m", "env": {"B": 2}}, {}, tmp_path)
    assert launch.env == {"A": "1", "B": "2"}
    assert serve_command(LLAMA, {"model": "a b", "env": {"B": 2}}, {}) == ("A=1 B=2 llama-server -m 'a b' --port 8000")


def test_pacelines_options_are_flags_and_set_values_win_over_pinned_ones():
    argv = paceline_argv({"scheduling.max_num_seqs": 8, "enable_prefix_caching": False, "revision": None})
    assert argv[3:] == ("serve", "--port", "0", "--max-num-seqs", "8", "--no-enable-prefix-caching")
    line = serve_command(Server(base={}), {"model": "m"}, {"cache.watermark": 0.02})
    assert shlex.split(line) == ["paceline", "serve", "--port", "8000", "--watermark", "0.02", "--model", "m"]
    with pytest.raises(ConfigError):
        paceline_argv({"model": {"a": 1}})


def test_weights_are_found_on_the_command_line_or_told(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"1")
    assert weight_paths(LLAMA, {"model": str(file)}, {}, tmp_path) == [file]
    assert weight_paths(LLAMA, {"model": "an-alias"}, {}, tmp_path) == []
    assert weight_paths(Server(), {"model": "an-alias"}, {"path": str(file)}, tmp_path) == [file]
    assert weight_paths(Server(model_files=("m.gguf",)), {}, {}, tmp_path) == [file]


def test_a_key_comes_from_a_file_and_is_not_in_the_command(tmp_path):
    (tmp_path / "key").write_text("sk-secret\n")
    server = Server(kind="command", argv=("s",), api_key_file="key")
    launch = launch_of(server, {}, {}, tmp_path)
    assert launch.api_key == "sk-secret"
    assert "sk-secret" not in serve_command(server, {}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        launch_of(Server(kind="command", argv=("s",), api_key_file="none"), {}, {}, tmp_path)
