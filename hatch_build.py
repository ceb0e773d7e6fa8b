"""Compiles the native CPU kernels while paceline is installed or built. Without a compiler the install goes on without
them: the kernels in torch serve, and `paceline doctor` says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path(__file__).parent / "src/paceline/runtime/kernels/cpu/build.py"


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        spec = importlib.util.spec_from_file_location("paceline_native_build", BUILD)
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        reason = build.why_not()
        if not reason:
            try:
                build.compile_library()
            except (RuntimeError, OSError) as error:  # OSError: the sources are read-only, say
                reason = str(error)
        if reason:
            self.app.display_warning(f"no native CPU kernels: {reason}")
            return
        build_data["artifacts"].append(str(build.LIBRARY.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
