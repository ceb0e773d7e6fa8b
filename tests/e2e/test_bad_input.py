"""Mistakes a new user makes: each ends with a clear message that names the fix, without a traceback."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import pytest
from tests.e2e.conftest import Run

MODEL = "smollm2-135m"


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.replace("│", " ").split())
    for word in words:
        assert word in text, done.stderr


def test_missing_file(paceline: Run, tmp_path: Path) -> None:
    refused(paceline("generate", "hi", "-m", str(tmp_path / "no.gguf")), "no.gguf", "fix:")


def test_unknown_alias_names_the_nearest(paceline: Run) -> None:
    refused(paceline("generate", "hi", "-m", "smolm2-135m"), "smollm2-135m")


def test_folder_that_is_no_model(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    refused(paceline("generate", "hi", "-m", str(tmp_path)), "config.json")


def test_folder_of_an_unknown_architecture(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    refused(paceline("generate", "hi", "-m", str(tmp_path)), "rwkv", "llama")


@pytest.mark.model
def test_gguf_cut_in_half(paceline: Run, tmp_path: Path, smollm2_path: Path) -> None:
    whole = smollm2_path.read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: len(whole) // 2])
    refused(paceline("generate", "hi", "-m", str(tmp_path / "half.gguf")), "half.gguf", "again")


def test_not_a_gguf_file(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"hello world, this is not a model" * 10)
    refused(paceline("generate", "hi", "-m", str(tmp_path / "x.gguf")), "GGUF")


@pytest.mark.model
def test_prompt_too_long(paceline: Run) -> None:
    refused(paceline("generate", "-", "-m", MODEL, "--max-model-len", "64", stdin="many words " * 100), "at most 63")


@pytest.mark.model
def test_negative_max_tokens(paceline: Run) -> None:
    refused(paceline("generate", "hi", "-m", MODEL, "--max-tokens", "-5"), "max_tokens", "-5", "1 to 2147483647")


def test_unknown_option_names_the_nearest(paceline: Run) -> None:
    refused(paceline("generate", "hi", "--max-num-seq", "4"), "--max-num-seqs")


def test_unknown_option_in_a_file_names_the_nearest(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[scheduling]\nmax_num_sequences = 4\n")
    refused(paceline("generate", "hi", "--config", str(tmp_path / "c.toml")), "max_num_seqs")


def test_feature_that_is_not_there(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[scheduling]\ntensor_parallel_size = 8\n")
    refused(paceline("generate", "hi", "--config", str(tmp_path / "c.toml")), "not in this version")


@pytest.mark.model
def test_unsound_combination_names_the_nearest_valid(paceline: Run) -> None:
    refused(paceline("generate", "hi", "-m", MODEL, "--preemption", "offload"), "offload", "recompute")


@pytest.mark.model
def test_template_that_raises(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ raise_exception('only system messages here') }}")
    refused(
        paceline("chat", "--message", "hi", "-m", MODEL, "--chat-template", str(tmp_path / "t.jinja")),
        "only system messages here",
    )


@pytest.mark.model
def test_pool_too_small_for_the_length(paceline: Run) -> None:
    refused(
        paceline("generate", "hi", "-m", MODEL, "--max-model-len", "8192", "--kv-cache-memory", "4000000"),
        "max_model_len",
        "fix:",
    )


@pytest.mark.model
def test_chat_with_a_base_model_names_the_template_option(paceline: Run) -> None:
    refused(paceline("chat", "--message", "hi", "-m", "gemma3-270m"), "--chat-template")


def test_wrong_type_says_what_was_expected(paceline: Run) -> None:
    refused(paceline("generate", "hi", "--max-num-seqs", "many"), "--max-num-seqs", "integer")
