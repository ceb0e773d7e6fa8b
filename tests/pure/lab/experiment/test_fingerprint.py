"""What a number was measured on, without a secret."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess

import pytest

import paceline
from paceline.lab.experiment import fingerprint as module
from paceline.lab.experiment.fingerprint import fingerprint, model_facts


def test_host_versions_and_clock_are_there(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    found = fingerprint("http://127.0.0.1:8000", server={"version": "1"})
    assert found["versions"]["paceline"] == paceline.__version__
    assert found["host"]["memory_bytes"] > 0
    assert found["host"]["num_usable_cores"] >= 1
    assert found["clock"]["monotonic"]
    assert found["same_host"] is True
    assert fingerprint("http://example.org")["same_host"] is False
    assert "sk-very-secret" not in json.dumps(found)


def test_a_model_is_known_by_its_bytes(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_bytes(b"{}")
    found = model_facts(folder)
    assert found["weight_bytes"] == 7
    assert found["weights_digest"] == "whole files"
    size = b"tokenizer.json:2\n"
    assert found["tokenizer.json_sha256"] == hashlib.sha256(size + b"{}").hexdigest()


def test_large_weights_are_sampled_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(module, "_SAMPLE_BYTES", 1 << 12)
    for name, end in (("a", b"x"), ("b", b"y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.gguf").write_bytes(b"0" * (2 << 20) + end)
    a, b = (model_facts(tmp_path / name) for name in "ab")
    assert a["weights_digest"] == "samples of 1 MiB"
    assert a["weight_bytes"] == b["weight_bytes"]
    assert a["weights_sha256"] != b["weights_sha256"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_an_installed_package_is_none_of_the_repository_around_it(tmp_path):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    package = tmp_path / "venv" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "mine.txt").write_text("mine")
    git("init")
    git("add", "mine.txt")
    git("commit", "-m", "mine")
    assert module.git_facts(package) == {}
    module.git_facts.cache_clear()
    git("add", "venv")
    git("commit", "-m", "ours")
    assert module.git_facts(package)["dirty"] is False
    module.git_facts.cache_clear()
