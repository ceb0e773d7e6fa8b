"""What a built engine tells about itself, as plain values: to the server over the wire, and from there to operators."""

from __future__ import annotations

from typing import Any

from paceline.assemble.core import Core
from paceline.config import EngineConfig, ServerConfig, option_table, server_table
from paceline.config.options import Option


def engine_info(built: Core) -> dict[str, Any]:
    """Sizes, device, start-up phases (seconds), the memory ledger (rows: part, predicted, measured, how), the knobs the
    profile chose, and every option of the engine with its resolved value, group and reason."""
    caps = built.core.executor.caps
    spec, device = built.spec, built.device
    return {
        "model": built.config.model.model,
        "family": spec.family,
        "revision": spec.revision,
        "weight_dtype": spec.weight_dtype,
        "stored_weight_bytes": spec.weight_bytes,
        "weight_bytes": built.memory.ledger.weights.predicted_bytes,
        "num_parameters": spec.num_parameters,
        "path": str(built.files.path),
        "vocab_size": caps.vocab_size,
        "max_model_len": built.memory.max_model_len,
        "num_blocks": caps.layout.num_blocks,
        "num_kv_groups": len(caps.layout.groups),
        "block_size": caps.layout.block_size,
        "dtype": built.dtype,
        "device": {
            "kind": device.kind,
            "name": device.name,
            "num_cores": device.num_cores,
            "memory_bytes": device.memory_bytes,
            "gflops": device.gflops,
            "memory_gbps": device.memory_gbps,
            "source": device.source,
        },
        "phases": dict(built.phases),
        "ledger": [list(row) for row in built.memory.ledger.render()],
        "notes": list(built.memory.notes),
        "knobs": [
            {"name": d.name, "value": d.value, "source": d.source, "reason": d.reason} for d in built.knobs.derived
        ],
        "options": engine_options(built),
    }


def engine_options(built: Core) -> list[dict[str, Any]]:
    """Every option of the engine's tree as it was resolved."""
    derived = {d.name: d for d in built.knobs.derived}
    rows = []
    for option in option_table().values():
        value = option_value(built.config, option)
        source = "default" if value == option.default else "set"
        reason = option.doc
        if option.name in derived:
            knob = derived[option.name]
            value, source, reason = knob.value, knob.source, knob.reason
        if option.name == "max_model_len" and built.memory.max_model_len != value:
            value, reason = built.memory.max_model_len, "; ".join([reason, *built.memory.notes])
        if option.name == "dtype" and value == "auto":
            value, source, reason = built.dtype, "profile", "auto: the fastest type this device computes in"
        if option.name == "device" and value == "auto":
            value, source, reason = built.device.kind, "profile", "auto: what was found"
        rows.append(_row(option, value, source, reason))
    return rows


def server_options(settings: ServerConfig) -> list[dict[str, Any]]:
    """Every option of the server; of secrets, only whether they are set."""
    rows = []
    for option in server_table().values():
        value = getattr(settings, option.name)
        source = "default" if value == option.default else "set"
        shown = ("set, not shown" if value else None) if option.secret else value
        rows.append(_row(option, list(shown) if isinstance(shown, tuple) else shown, source, option.doc))
    return rows


def _row(option: Option, value: Any, source: str, reason: str) -> dict[str, Any]:
    return {"name": option.path, "value": value, "group": option.group, "source": source, "reason": reason}


def option_value(config: EngineConfig, option: Option) -> Any:
    """What the tree holds, before a profile has its say."""
    holder: Any = getattr(config, option.section) if option.section else config
    return getattr(holder, option.name)
