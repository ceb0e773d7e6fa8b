"""Sampling flags shared by the commands that generate text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # requests hold arrays, and `--help` has no use for numpy
    from paceline.contracts.request import SamplingParams

PANEL = "Sampling"

MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.", rich_help_panel=PANEL)]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="0 takes the likeliest token.", rich_help_panel=PANEL)
]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest up to this mass.", rich_help_panel=PANEL)]
TopK = Annotated[int, typer.Option("--top-k", help="Keep this many of the likeliest; 0 = all.", rich_help_panel=PANEL)]
MinP = Annotated[
    float,
    typer.Option("--min-p", help="Keep tokens this likely, relative to the best.", rich_help_panel=PANEL),
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1 discourages what was said.", rich_help_panel=PANEL)
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End at this text; may be given again.", rich_help_panel=PANEL)
]


def params(
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    repetition_penalty: float,
    stop: list[str] | None,
) -> SamplingParams:
    from paceline.contracts.request import SamplingParams

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=tuple(stop or ()),
    )
