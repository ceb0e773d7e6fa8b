"""The commands of the README, as a user types them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import Run
from typer.testing import CliRunner

from paceline.cli.main import app

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m"


def test_version_and_help(paceline: Run) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", paceline("--version").stdout)
    done = paceline("--help")
    assert done.returncode == 0
    for command in ("models", "generate", "chat", "serve", "doctor", "replay", "demo", "bench-step", "calibrate"):
        assert command in done.stdout


def test_engine_options_are_in_the_help_of_every_command_that_loads_a_model() -> None:
    runner = CliRunner(env={"COLUMNS": "200"})
    for command in ("generate", "chat", "serve", "doctor", "demo"):
        assert "--max-num-batched-tokens" in runner.invoke(app, [command, "--help"]).stdout


def test_doctor_prints_the_feature_matrix(paceline: Run) -> None:
    done = paceline("doctor", "--matrix")
    assert done.returncode == 0
    assert "prefix_cache" in done.stdout
    assert "preemption:offload" in done.stdout


@pytest.mark.model
def test_generate_continues_a_text(paceline: Run) -> None:
    done = paceline("generate", "The capital of France is", "-m", MODEL, "--max-tokens", "8", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is Paris")


@pytest.mark.model
def test_chat_answers_until_it_is_told_to_end(paceline: Run) -> None:
    typed = "Say hello.\nSay it again.\n/new\n/exit\n"
    done = paceline("chat", "-m", MODEL, "--max-tokens", "12", "-t", "0", stdin=typed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("> ") >= 4
    assert len(done.stdout) > 80


@pytest.mark.model
def test_a_base_model_continues_text(paceline: Run) -> None:
    done = paceline("generate", "One, two, three, four,", "-m", "gemma3-270m", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "five" in done.stdout


@pytest.mark.model
def test_doctor_shows_device_kernels_knobs_and_memory(paceline: Run) -> None:
    done = paceline("doctor", "-m", MODEL)
    assert done.returncode == 0, done.stderr
    out = done.stdout + done.stderr
    for word in ("GFLOP/s", "attention", "max_num_seqs", "weights", "kv", "margin", "start-up"):
        assert word in out


@pytest.mark.model
@pytest.mark.parametrize(
    "page", ["README.md", pytest.param("docs/guides/first-ten-minutes.md", marks=pytest.mark.long)]
)
def test_python_in_the_pages_runs(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [block for block in blocks if "localhost:8000" not in block]  # those ask a server: see test_curl
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_the_chinese_readme_follows_the_english_one() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    code = r"```(?:sh|python)\n(.*?)```"
    without_comments = [
        [re.sub(r"\s+#.*", "", block) for block in re.findall(code, text, flags=re.DOTALL)]
        for text in (english, chinese)
    ]
    assert without_comments[0] == without_comments[1]
    assert len(re.findall(r"^## ", english, flags=re.M)) == len(re.findall(r"^## ", chinese, flags=re.M))
