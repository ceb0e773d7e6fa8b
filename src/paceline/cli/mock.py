"""`paceline mock`: a scripted server, to try clients and dashboards against without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import clean_errors


def mock(
    script: Annotated[
        Path | None, typer.Option(help="TOML or JSON (docs/reference/mock.md). Without one, the flags below decide.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 8100,
    flavour: Annotated[str, typer.Option(help="Whose extensions it shows: paceline, vllm, llama.cpp, openai.")] = "",
    model: Annotated[str, typer.Option(help="Name of the model.")] = "",
    ttft_ms: Annotated[float | None, typer.Option(min=0, help="Service begun to first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(min=0, help="Time per token after the first chunk.")] = None,
    tokens_per_chunk: Annotated[int | None, typer.Option(min=1, help="Tokens in each chunk.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Requests served at once; others wait.")] = None,
    prefix_cache: Annotated[bool, typer.Option("--prefix-cache", help="Keep prompts' blocks for later ones.")] = False,
) -> None:
    """Serve scripted answers over the OpenAI API: known delays, known faults, no model."""
    with clean_errors():
        from paceline.errors import ConfigError
        from paceline.lab.mock import load_script
        from paceline.lab.mock.main import run_mock

        flags = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "tokens_per_chunk": tokens_per_chunk, "slots": slots}
        service = {name: value for name, value in flags.items() if value is not None}
        if prefix_cache:
            service["prefix_cache"] = True
        own: dict[str, object] = {"service": service} if service else {}
        if flavour:
            own["flavour"] = flavour
        if model:
            own["models"] = [model]
        if script is not None and own:
            raise ConfigError("--script decides everything", seen=", ".join(own), fix="write it in the script")
        run_mock(load_script(script if script is not None else own), host=host, port=port, announce=_announce)


def _announce(url: str) -> None:
    print(f"mock at {url}/v1; what it saw: {url}/mock/log", flush=True)
