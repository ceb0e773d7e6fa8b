"""The build hook: native kernels where they can be compiled, and an install that goes on where they cannot."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "src/paceline/runtime/kernels/cpu/_native.so"


def hook(monkeypatch: pytest.MonkeyPatch, outcome: Exception | None, reason: str = "") -> tuple[Any, list[str]]:
    """The hook over a compiler that ends in `outcome`, and the warnings it shows. hatchling need not be installed."""
    plugin = ModuleType("hatchling.builders.hooks.plugin.interface")
    plugin.BuildHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    module = _load(ROOT / "hatch_build.py")
    module.importlib = SimpleNamespace(
        util=SimpleNamespace(
            spec_from_file_location=lambda *_: SimpleNamespace(loader=_Loader()),
            module_from_spec=lambda _: _fake_build(outcome, reason),
        )
    )
    made, told = module.NativeKernels(), list[str]()
    made.root, made.target_name = str(ROOT), "wheel"
    made.app = SimpleNamespace(display_warning=told.append)
    return made, told


class _Loader:
    def exec_module(self, _module: object) -> None:
        """The fake is complete."""


def _fake_build(outcome: Exception | None, reason: str) -> SimpleNamespace:
    def compile_library() -> None:
        if outcome is not None:
            raise outcome

    return SimpleNamespace(why_not=lambda: reason, compile_library=compile_library, LIBRARY=LIBRARY)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_compiled_library_goes_into_a_wheel_of_this_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = hook(monkeypatch, None)
    data: dict[str, Any] = {"artifacts": []}
    made.initialize("standard", data)
    assert data == {
        "artifacts": ["src/paceline/runtime/kernels/cpu/_native.so"],
        "pure_python": False,
        "infer_tag": True,
    }
    assert told == []


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (RuntimeError("c++: no such flag"), ""),
        (PermissionError(13, "Permission denied"), ""),  # sources on a read-only disk
        (None, "there is no C++ compiler"),
    ],
)
def test_without_a_library_the_install_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, outcome: Exception | None, reason: str
) -> None:
    made, told = hook(monkeypatch, outcome, reason)
    data: dict[str, Any] = {"artifacts": []}
    made.initialize("standard", data)
    assert data == {"artifacts": []}
    assert len(told) == 1
    assert told[0].startswith("no native CPU kernels: ")
