"""From a node's options to a command line: how each arm of an experiment is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.lab.experiment.groups import plain
from paceline.lab.experiment.process import Launch, paceline_argv
from paceline.lab.experiment.spec import Server


def launch_of(server: Server, options: Mapping[str, Any], pinned: Mapping[str, Any], folder: Path) -> Launch:
    """How a node's server is started. Raises ConfigError for options that a command line cannot carry."""
    env = {**server.env, **{str(k): str(v) for k, v in options.get("env", {}).items()}}
    flags = {name: value for name, value in options.items() if name != "env"}
    key = read_key(server, folder)
    if server.kind == "paceline":
        argv, url = paceline_argv({**pinned, **flags}), ""
    else:
        argv, url = command_argv(server.argv, flags), server.url
    return Launch(
        argv=argv,
        env=env,
        url=url,
        cwd=str(folder / server.cwd) if server.cwd else None,
        api_key=key,
        ready_timeout_s=server.ready_timeout_s,
        stop_s=server.stop_s,
    )


def command_argv(template: tuple[str, ...], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options with a {place} in the template fill it; the others follow as flags: `max_num_seqs = 8` as
    `--max-num-seqs 8`, `-c = 4096` as it stands, true as the flag alone, false as nothing."""
    places = {name: "{" + name + "}" for name in options}
    used = {name for name, place in places.items() if any(place in part for part in template)}
    argv = []
    for part in template:
        for name in used:
            part = part.replace(places[name], str(options[name]))
        argv.append(part)
    for name, value in options.items():
        if name in used or value is None or value is False:
            continue
        flag = name if name.startswith("-") else "--" + name.replace("_", "-")
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Mapping):
                raise ConfigError("an option of a server is a number, a text or a list", seen=f"{name} = {value!r}")
            argv += [flag] if item is True else [flag, str(item)]
    return tuple(argv)


def read_key(server: Server, folder: Path) -> str | None:
    if server.api_key_file is None:
        return None
    try:
        return (folder / server.api_key_file).read_text().strip()
    except OSError as error:
        raise ConfigError("the file with the API key cannot be read", seen=error.filename) from None


def serve_command(server: Server, options: Mapping[str, Any], pinned: Mapping[str, Any], port: int = 8000) -> str:
    """A line for a shell that serves this node. Pinned values are in it: they are part of what was measured."""
    env = [f"{k}={shlex.quote(str(v))}" for k, v in {**server.env, **options.get("env", {})}.items()]
    flags = {name: value for name, value in options.items() if name != "env"}
    if server.kind == "paceline":
        argv = ["paceline", "serve", "--port", str(port), *_flags_only(paceline_argv({**pinned, **flags}))]
    else:
        argv = [p.replace("{port}", str(port)).replace("{host}", "127.0.0.1") for p in command_argv(server.argv, flags)]
    return " ".join([*env, shlex.join(argv)])


def _flags_only(argv: tuple[str, ...]) -> list[str]:
    """What follows `serve --port 0`."""
    return list(argv[argv.index("--port") + 2 :])


def weight_paths(server: Server, options: Mapping[str, Any], config: Mapping[str, Any], folder: Path) -> list[Path]:
    """Where the model's files are, for a cold start and the fingerprint: what the spec says, what the server tells,
    else files and folders named on its command line."""
    if server.model_files:
        return [folder / name for name in server.model_files]
    if config.get("path"):
        return [Path(str(config["path"]))]
    words = [*server.argv, *(str(v) for k, v in options.items() if plain(k) in ("model", "m"))]
    return [p for p in (Path(word) for word in words[1:]) if p.exists() and _holds_weights(p)]


def _holds_weights(path: Path) -> bool:
    suffixes = (".safetensors", ".gguf")
    try:
        return path.suffix in suffixes if path.is_file() else any(p.suffix in suffixes for p in path.iterdir())
    except OSError:  # not for us to look into
        return False
