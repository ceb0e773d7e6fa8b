"""What is imported is declared, and what is declared is pinned, torch first of all."""

import re
import sys
import tomllib

from tests.arch.source import ROOT, imports, modules

DISTRIBUTIONS = {
    "zmq": "pyzmq",
    "huggingface_hub": "huggingface-hub",
    "prometheus_client": "prometheus-client",
    "jsonschema_specifications": "jsonschema-specifications",
}  # import name -> name to install, where they differ
DATA_ONLY = {"plotly"}  # its script goes into reports; its Python is not used
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.split(r"[<>=!\[;~ ]", line, maxsplit=1)[0].lower() for line in requirements}


def test_every_imported_library_is_declared():
    declared = names(PROJECT["dependencies"])
    for name, extra in PROJECT["optional-dependencies"].items():
        declared |= names(extra) if name != "dev" else set()
    used = {}
    for module in modules().values():
        for found in imports(module):
            top = found.target.split(".")[0]
            if top != "paceline" and top not in sys.stdlib_module_names:
                used.setdefault(DISTRIBUTIONS.get(top, top), module.relative)
    assert not {name: where for name, where in used.items() if name not in declared}
    extras = set().union(*(names(e) for e in PROJECT["optional-dependencies"].values()))
    assert not names(PROJECT["dependencies"]) - set(used) - extras - DATA_ONLY, "declared and never imported"


def test_every_dependency_is_pinned_and_torch_exactly():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins)
    assert "torch==2.13.0" in pins
    pinned = {name.replace("_", "-") for name in names(pins)}
    declared = names(PROJECT["dependencies"]).union(*(names(e) for e in PROJECT["optional-dependencies"].values()))
    assert not declared - pinned
