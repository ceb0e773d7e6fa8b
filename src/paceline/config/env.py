"""The few environment variables paceline reads, all of them here. Options of the tree never come from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from paceline.errors import ConfigError

ENV_NAMES: dict[str, str] = {
    "PACELINE_HOME": "Folder of fetched models; default: $XDG_CACHE_HOME/paceline or ~/.cache/paceline.",
    "XDG_CACHE_HOME": "Used only to find the default of PACELINE_HOME.",
    "HF_ENDPOINT": "Base URL of the model hub; default: https://huggingface.co.",
    "HF_TOKEN": "Access token for gated models of the hub.",
    "HF_HUB_OFFLINE": "1: never ask the hub; models must be there already.",
    "PACELINE_CPU_ISA": "Highest level of instructions for native CPU kernels: avx2, avxvnni, avx512, vnni512 or amx; "
    "default: what the machine has. `paceline doctor` shows the one in use.",
}


PROCESS_DEFAULTS: dict[str, str] = {
    # OpenMP threads spin at a barrier and then sleep. Beside another busy process the one that is waited for has
    # lost its core, and the others burn theirs. docs/decisions/0006 has the numbers.
    "GOMP_SPINCOUNT": "3000",
}
"""Set for processes that are paceline's own (the command line, an engine's child) unless the user set them."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, as values to hand on."""

    home: Path
    hf_endpoint: str = "https://huggingface.co"
    hf_token: str | None = None
    hf_offline: bool = False
    cpu_isa: str | None = None  # its names are the native library's, which checks it

    def __repr__(self) -> str:
        """Without the token: this text ends up in logs."""
        shown = {"home": str(self.home), "hf_endpoint": self.hf_endpoint, "hf_offline": self.hf_offline}
        return f"Environment({shown}, hf_token {'set' if self.hf_token else 'not set'})"


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the variables of `ENV_NAMES` (from the process when no mapping is given). Empty counts as unset.

    Raises ConfigError for a value that cannot be.
    """
    source = os.environ if environ is None else environ
    found = {name: value for name in ENV_NAMES if (value := source.get(name, "").strip())}
    cache = Path(found["XDG_CACHE_HOME"]) if "XDG_CACHE_HOME" in found else Path.home() / ".cache"
    home = Path(found["PACELINE_HOME"]).expanduser() if "PACELINE_HOME" in found else cache / "paceline"
    endpoint = found.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError("HF_ENDPOINT is not a URL", seen=endpoint, expected="http:// or https:// and a host")
    offline = found.get("HF_HUB_OFFLINE", "0").lower()
    if offline not in {"0", "1", "true", "false", "yes", "no", "on", "off"}:
        raise ConfigError("HF_HUB_OFFLINE is neither on nor off", seen=offline, expected="1 or 0")
    return Environment(
        home=home,
        hf_endpoint=endpoint,
        hf_token=found.get("HF_TOKEN"),
        hf_offline=offline in {"1", "true", "yes", "on"},
        cpu_isa=found.get("PACELINE_CPU_ISA"),
    )


def prepare_process() -> None:
    """Put `PROCESS_DEFAULTS` into this process's environment, where unset. Call it before torch is loaded; only a
    program does, a library leaves its host's environment alone."""
    for name, value in PROCESS_DEFAULTS.items():
        os.environ.setdefault(name, value)


def child_environment() -> dict[str, str]:
    """The environment for a process of paceline's own."""
    return {**PROCESS_DEFAULTS, **os.environ}
