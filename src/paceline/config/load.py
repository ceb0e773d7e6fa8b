"""From a TOML file and flat flags to the tree and the server's options. Each is checked here, at the edge, by name.

Order of precedence: flags, then the file, then defaults. An unknown name is an error that suggests the nearest one; the
name of something that is planned but not in this version gets an answer of its own.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.config.features import NOT_YET_OPTIONS
from paceline.config.options import SERVER, Option, full_table, option_table, sections, server_table
from paceline.config.server import ServerConfig
from paceline.config.tree import EngineConfig
from paceline.errors import ConfigError, UnsupportedError

RENAMED = {
    "gpu_memory_utilization": "memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "max_context": "max_model_len",
    "context_length": "max_model_len",
    "max_batch_size": "max_num_seqs",
    "max_running_requests": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "chunked_prefill_size": "prefill_chunk_tokens",
    "long_prefill_token_threshold": "prefill_chunk_tokens",
    "scheduling_policy": "policy",
    "max_num_queued_reqs": "max_waiting_requests",
    "max_num_queued_tokens": "max_waiting_tokens",
}
"""Names other engines use for what an option here means. They are not accepted; they are what the hint says."""


def load_config(path: Path | str | None = None, flags: Mapping[str, Any] | None = None) -> EngineConfig:
    """The tree from a TOML file (sections as in the tree) and flat flags (option name to value). A file may have a
    section for the server beside; it is checked and left alone.

    Raises ConfigError for an unknown name, a wrong type or value, and a file that cannot be read; UnsupportedError for
    the name of a feature that is not in this version.
    """
    return build_config(_gather(path, flags, option_table()))


def load_server_config(path: Path | str | None = None, flags: Mapping[str, Any] | None = None) -> ServerConfig:
    """The server's options from the section `[server]` of the same file, and flags. Raises as `load_config`."""
    return ServerConfig(**_gather(path, flags, server_table()))


def _gather(path: Path | str | None, flags: Mapping[str, Any] | None, table: Mapping[str, Option]) -> dict[str, Any]:
    """Checked values of one table's options: the file's, then the flags'."""
    values: dict[str, Any] = {}
    if path is not None:
        values = {name: value for name, value in read_file(Path(path)).items() if name in table}
    for name, value in (flags or {}).items():
        found = find_option(name, table)
        values[found.name] = check_value(found, value)
    return values


def build_config(values: Mapping[str, Any]) -> EngineConfig:
    """The tree from checked values by option name; defaults for the rest."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        section = option_table()[name].section
        (tree.setdefault(section, {}) if section else tree)[name] = value
    hints = {f.name: f.type for f in msgspec.structs.fields(EngineConfig)}
    for section in sections():
        if section in tree:
            tree[section] = hints[section](**tree[section])
    return EngineConfig(**tree)


def read_file(path: Path) -> dict[str, Any]:
    """Checked values by option name. Options stand in their section's table, or at the top where the tree has them."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("the configuration file does not exist", seen=str(path), fix="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the configuration file cannot be read", seen=f"{path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("the configuration file is not valid TOML", seen=f"{path}: {error}") from None
    values: dict[str, Any] = {}
    known = (*sections(), SERVER)
    for key, value in document.items():
        if isinstance(value, dict):
            if key not in known:
                raise ConfigError(
                    "unknown section in the configuration file",
                    seen=f"[{key}] in {path}",
                    expected=", ".join(f"[{s}]" for s in known),
                    fix=_nearest(key, known, "did you mean [{}]?"),
                )
            for name, inner in value.items():
                values[name] = check_value(_in_section(name, key, path), inner)
        else:
            values[key] = check_value(_in_section(key, "", path), value)
    return values


def find_option(name: str, table: Mapping[str, Option] | None = None) -> Option:
    """The option called `name` (dashes count as underscores, a section before a dot is checked). `table`: those that
    may be named; the engine's when left out."""
    section, _, plain = name.lstrip("-").replace("-", "_").rpartition(".")
    table = option_table() if table is None else table
    if plain in NOT_YET_OPTIONS:
        raise UnsupportedError(f"{plain} is not in this version", seen=name, fix=NOT_YET_OPTIONS[plain])
    if plain not in table:
        if plain in RENAMED:
            fix = f"it is called {RENAMED[plain]} here"
        else:
            fix = (
                _nearest(plain, tuple(table), "did you mean {}?")
                or "see the list of options in docs/reference/config.md"
            )
        raise ConfigError("unknown option", seen=name, fix=fix)
    found = table[plain]
    if section and section != found.section:
        raise ConfigError("option in the wrong section", seen=name, expected=found.path)
    return found


def check_value(option: Option, value: Any) -> Any:
    """`value` as the option's type, or ConfigError with seen and expected. The text "none" stands for None."""
    if option.optional and isinstance(value, str) and value.lower() == "none":
        value = None
    if option.several and isinstance(value, str):
        value = (value,)
    try:
        checked = msgspec.convert(value, option.type)
    except msgspec.ValidationError:
        raise _wrong(option, value) from None
    if isinstance(checked, (int, float)) and not isinstance(checked, bool) and not _within(option, checked):
        raise _wrong(option, value)
    return checked


def parse_assignment(text: str) -> tuple[str, Any]:
    """`name=value` as typed on a command line; the value is read as TOML where it can be, else as text."""
    name, equals, raw = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError("not an assignment", seen=text, expected="name=value")
    try:
        return name.strip(), tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), raw.strip()


def _within(option: Option, value: float) -> bool:
    return (
        math.isfinite(value)
        and (option.ge is None or value >= option.ge)
        and (option.gt is None or value > option.gt)
        and (option.le is None or value <= option.le)
        and (not option.power_of_two or int(value).bit_count() == 1)
    )


def _wrong(option: Option, value: Any) -> ConfigError:
    fix = _nearest(value, option.choices, "did you mean {}?") if isinstance(value, str) else ""
    return ConfigError(f"{option.path} cannot be that", seen=repr(value), expected=option.expected, fix=fix)


def _in_section(name: str, section: str, path: Path) -> Option:
    found = find_option(name, full_table())
    if found.section != section:
        where = f"[{found.section}]" if found.section else "the top of the file, before the sections"
        raise ConfigError("option in the wrong place", seen=f"{name} in {path}", expected=f"{name} in {where}")
    return found


def _nearest(name: str, known: tuple[str, ...], words: str) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return words.format(close[0]) if close else ""
