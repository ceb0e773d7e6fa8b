"""KL and top-1 agreement on given texts: the same tokens through both servers, position by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from paceline.lab.quality.caller import Caller
from paceline.lab.quality.distributions import Prompt, PromptLogprobs
from paceline.lab.quality.divergence import Comparison, Point, compare_text, summarise


async def prompt_divergence(
    reference: Caller,
    candidate: Caller,
    texts: Sequence[str],
    *,
    max_tokens: int = 8000,
    num_top: int = 20,
    on_done: Callable[[], None] | None = None,
) -> Comparison:
    """Texts are cut to `max_tokens` tokens where the reference can count them. Raises LabError where a server does not
    tell log probabilities of a prompt, or the two cut a text into different tokens."""
    askers = PromptLogprobs(reference, num_top=num_top), PromptLogprobs(candidate, num_top=num_top)

    async def one(text: str) -> list[Point]:
        ids = await reference.tokenize(text)
        prompt: Prompt = ids[:max_tokens] if ids is not None else text
        found = [await asker.ask(prompt) for asker in askers]
        if askers[0].form != askers[1].form:  # tokens are named by id in one and by text in the other
            for asker in askers:
                asker.form = "echo"
            found = [await asker.ask(prompt) for asker in askers]
        return compare_text(found[0], found[1])

    first = await one(texts[0])  # finds the forms before many ask at once
    if on_done is not None:
        on_done()
    rest: list[list[Point]] = await candidate.map(one, texts[1:], on_done)
    form = "echo" if "echo" in {asker.form for asker in askers} else "prompt_logprobs"
    found = summarise(
        [first, *rest],
        reference=await reference.model(),
        candidate=await candidate.model(),
        method=form,
        num_top=num_top,
    )
    note = (
        "prompts are read in large chunks: a KV cache of lower precision shows only where a chunk reads an earlier "
        "one; greedy agreement reads it token by token"
    )
    return msgspec.structs.replace(found, notes=(note,))
