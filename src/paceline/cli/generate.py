"""`paceline generate`: continue a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from paceline.cli import sampling
from paceline.cli.options import EngineConfig, engine_options


@engine_options
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads standard input.")],
    *,
    max_tokens: sampling.MaxTokens = 128,
    temperature: sampling.Temperature = 0.0,
    top_p: sampling.TopP = 1.0,
    top_k: sampling.TopK = 0,
    min_p: sampling.MinP = 0.0,
    repetition_penalty: sampling.RepetitionPenalty = 1.0,
    stop: sampling.Stop = None,
    config: EngineConfig,
) -> None:
    """Continue a text and print it as it comes."""
    from paceline.cli.progress import loaded

    params = sampling.params(max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, stop)
    text = sys.stdin.read() if prompt == "-" else prompt
    with loaded(config) as llm:
        begun = False
        for delta in llm.stream(text, params):
            print(delta.text if begun else text + delta.text, end="", flush=True)
            begun = True
        print()
