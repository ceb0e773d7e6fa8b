"""Mistakes a new user makes: each ends with a clear message that names the fix, without a traceback.

Some run as a process of their own, which is what a user sees; the others in this one, and most with a tiny model, for
what they are told does not hang on either.
"""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import pytest
from tests.e2e.conftest import Run
from tests.fakes.model_folder import write_model
from typer.testing import CliRunner

from paceline.cli.main import app


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base model: it has no chat template."""
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))


def here(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """In this process. What would be a traceback is raised."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments), input=stdin, catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.replace("│", " ").split())
    for word in words:
        assert word in text, done.stderr


def test_missing_file(paceline: Run, tmp_path: Path) -> None:
    refused(paceline("generate", "hi", "-m", str(tmp_path / "no.gguf")), "no.gguf", "fix:")


def test_unknown_alias_names_the_nearest() -> None:
    refused(here("generate", "hi", "-m", "smolm2-135m"), "smollm2-135m")


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    refused(here("generate", "hi", "-m", str(tmp_path)), "config.json")


def test_folder_of_an_unknown_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    refused(here("generate", "hi", "-m", str(tmp_path)), "rwkv", "llama")


@pytest.mark.model
def test_gguf_cut_in_half(paceline: Run, tmp_path: Path, smollm2_path: Path) -> None:
    whole = smollm2_path.read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: len(whole) // 2])
    refused(paceline("generate", "hi", "-m", str(tmp_path / "half.gguf")), "half.gguf", "again")


def test_not_a_gguf_file(paceline: Run, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"hello world, this is not a model" * 10)
    refused(paceline("generate", "hi", "-m", str(tmp_path / "x.gguf")), "GGUF")


def test_prompt_too_long(paceline: Run, tiny: str) -> None:
    refused(paceline("generate", "-", "-m", tiny, "--max-model-len", "64", stdin="many words " * 40), "at most 63")


def test_negative_max_tokens(tiny: str) -> None:
    refused(here("generate", "hi", "-m", tiny, "--max-tokens", "-5"), "max_tokens", "-5", "1 to 2147483647")


def test_unknown_option_names_the_nearest() -> None:
    refused(here("generate", "hi", "--max-num-seq", "4"), "--max-num-seqs")


def test_unknown_option_in_a_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[scheduling]\nmax_num_sequences = 4\n")
    refused(here("generate", "hi", "--config", str(tmp_path / "c.toml")), "max_num_seqs")


def test_feature_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[scheduling]\ntensor_parallel_size = 8\n")
    refused(here("generate", "hi", "--config", str(tmp_path / "c.toml")), "not in this version")


def test_unsound_combination_names_the_nearest_valid(tiny: str) -> None:
    refused(here("generate", "hi", "-m", tiny, "--preemption", "offload"), "offload", "recompute")


def test_template_that_raises(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ raise_exception('only system messages here') }}")
    refused(
        here("chat", "--message", "hi", "-m", tiny, "--chat-template", str(tmp_path / "t.jinja")),
        "only system messages here",
    )


def test_pool_too_small_for_the_length(tiny: str) -> None:
    refused(
        here("generate", "hi", "-m", tiny, "--max-model-len", "256", "--kv-cache-memory", "40000"),
        "max_model_len",
        "fix:",
    )


def test_chat_with_a_base_model_names_the_template_option(tiny: str) -> None:
    refused(here("chat", "--message", "hi", "-m", tiny), "--chat-template")


def test_wrong_type_says_what_was_expected() -> None:
    refused(here("generate", "hi", "--max-num-seqs", "many"), "--max-num-seqs", "integer")
