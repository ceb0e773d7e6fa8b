"""Starting is cheap: importing paceline, or asking the program for help, loads nothing heavy."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "gguf", "safetensors", "jinja2", "zmq")


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_paceline_loads_nothing_heavy():
    loaded = loaded_after("import paceline")
    assert not loaded & {*HEAVY, "numpy", "typer", "rich", "httpx"}


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["doctor", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments):
    loaded = loaded_after(
        f"import sys\nsys.argv = ['paceline', *{arguments}]\n"
        "from paceline.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert not loaded & {*HEAVY, "numpy"}


@pytest.mark.parametrize("package", ["config", "contracts", "cost", "engine", "hub", "planner", "sim", "text"])
def test_packages_above_the_executor_port_load_without_torch(package):
    assert "torch" not in loaded_after(f"import paceline.{package}")


def test_public_names_resolve():
    import paceline

    assert all(getattr(paceline, name) is not None for name in paceline.__all__)
