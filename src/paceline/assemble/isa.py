"""The cap on instructions that the environment may set, put to the native library."""

from __future__ import annotations

from paceline.config import Environment
from paceline.errors import ConfigError


def limit_isa(environment: Environment) -> None:
    """Cap the level of this process's CPU kernels, if `PACELINE_CPU_ISA` is set. Call it before a kernel is chosen.

    Raises ConfigError for what is no level. Without a native library there is nothing to cap."""
    from paceline.runtime.kernels.cpu import native

    if environment.cpu_isa is None or native.why_not():
        return
    try:
        native.set_isa(environment.cpu_isa)
    except ValueError as error:
        raise ConfigError(
            "PACELINE_CPU_ISA is no level of instructions", seen=environment.cpu_isa, fix=str(error)
        ) from None


def isa_line() -> str:
    """Which level is in use and which there are, for a person; empty without the native library."""
    from paceline.runtime.kernels.cpu import native

    if native.why_not():
        return ""
    return f"native kernels use instructions up to {native.isa()}; this machine has {', '.join(native.isa_levels())}"
