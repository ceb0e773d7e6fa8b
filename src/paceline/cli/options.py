"""Options as command-line flags, made from the one option table.

A command decorated with `engine_options` takes every option of the configuration tree, plus `--config FILE`, and those
of the server if it has a parameter `server`; the model may then stand there without its flag. Only flags that were
given reach the configuration; an unknown flag is refused by the parser, which names the nearest one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from paceline.cli.errors import clean_errors
from paceline.config import (
    EngineConfig,
    Option,
    ServerConfig,
    load_config,
    load_server_config,
    option_table,
    server_table,
)
from paceline.errors import ConfigError

SHORT = {"model": "-m"}
NAMED = "model_argument"
TITLES = {
    "": "Engine",
    "model": "Model",
    "cache": "KV cache",
    "scheduling": "Scheduling",
    "device": "Device",
    "server": "Server",
}


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--config` and all engine options to a command, which receives them as one `config: EngineConfig`; and the
    server's, if it takes a `server: ServerConfig`."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    made = {"config": option_table()} | ({"server": server_table()} if "server" in signature.parameters else {})
    own = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values() if p.name not in made]

    def run(**given: Any) -> None:
        with clean_errors():
            path = given.pop("config_file")
            named = given.pop(NAMED, None)
            flags = {part: _given(given, table) for part, table in made.items()}
            if named is not None:
                flags["config"] = _with_model(flags["config"], named)
            given["config"] = load_config(path, flags["config"])
            if "server" in made:
                given["server"] = load_server_config(path, flags["server"])
            command(**given)

    extra = [_parameter("config_file", Path, "--config", "TOML file of options; flags win over it.", "Engine")]
    if "server" in made:
        extra.append(_model_argument())
    extra += [_option_parameter(option) for table in made.values() for option in table.values()]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    merged = signature.replace(parameters=[*own, *extra])
    run.__signature__ = merged  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in merged.parameters.items()}
    return run


def _model_argument() -> inspect.Parameter:
    help_text = "The same as --model: an alias, a folder, a .gguf file or a hub id."
    annotation = Annotated[str | None, typer.Argument(metavar="MODEL", help=help_text, show_default=False)]
    return inspect.Parameter(NAMED, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _with_model(flags: dict[str, Any], named: str) -> dict[str, Any]:
    if flags.get("model", named) != named:
        raise ConfigError(
            "two models are named",
            seen=f"{named} and --model {flags['model']}",
            expected="one",
            fix="leave one of them out; more models take a server each",
        )
    return flags | {"model": named}


def _given(given: dict[str, Any], table: dict[str, Option]) -> dict[str, Any]:
    """Take one table's flags out of `given`; those that were really given, as plain values."""
    found = {name: given.pop(name) for name in table}
    return {name: _plain(value) for name, value in found.items() if value is not None and value != []}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _option_parameter(option: Option) -> inspect.Parameter:
    default = "" if option.shown_default == "none" else f" [default: {option.shown_default}]"
    derived = " [default: from the profile]" if option.derived else ""
    unit = f" ({option.unit})" if option.unit else ""
    flag = f"{option.flag}/--no-{option.flag[2:]}" if _kind(option) is bool else option.flag
    help_text = f"{option.doc}{unit}{derived or default}"
    return _parameter(option.name, _kind(option), flag, help_text, TITLES[option.section], SHORT.get(option.name))


def _kind(option: Option) -> Any:
    """The Python type a flag is parsed as."""
    if option.several:
        return list[str]
    if option.choices and not any(t in (int, float) for t in get_args(option.type)):
        members = {choice: choice for choice in option.choices}
        return Enum(option.name, members, type=str)
    kinds = [t for t in (get_args(option.type) or (option.type,)) if t in (bool, int, float, str)]
    return kinds[0]


def _parameter(
    name: str, kind: Any, flag: str, help_text: str, panel: str, short: str | None = None
) -> inspect.Parameter:
    flags = (flag, short) if short else (flag,)
    annotation = Annotated[kind | None, typer.Option(*flags, help=help_text, rich_help_panel=panel, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


__all__ = ["EngineConfig", "ServerConfig", "engine_options"]
