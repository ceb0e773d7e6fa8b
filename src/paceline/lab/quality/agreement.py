"""Greedy agreement: do two servers write the same answer, and where do they part.

Up to and including the first difference both have seen the same context, so those positions can be compared as in
`divergence`; behind it they cannot, and nothing is claimed. Works with every server that tells the log probabilities
of what it writes; without them whole texts are compared.

Unlike the log probabilities of a prompt, these positions are read through the KV cache step by step: this is what
shows a KV cache of lower precision at work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from paceline.contracts.artefact import Estimate
from paceline.errors import LabError
from paceline.lab.quality.caller import Caller, Reply
from paceline.lab.quality.distributions import of_choice
from paceline.lab.quality.divergence import Comparison, Point, compare_position, summarise
from paceline.lab.stats.proportion import share_estimate


class TextAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt."""

    same: bool  # the whole answer
    num_same: int  # tokens (characters without log probabilities) before the first difference
    num_total: int  # of the longer answer
    points: list[Point] = []


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two servers on the same prompts."""

    reference: str
    candidate: str
    unit: str  # tokens or characters
    num_failed: int  # prompts without an answer from one of the two: left out
    whole: Estimate  # share of prompts with the same whole answer
    part_rate: Estimate  # chance to part at a position where both still agree: differences / compared positions
    texts: tuple[TextAgreement, ...]
    divergence: Comparison | None = None  # along the shared part


def compare_replies(a: Reply, b: Reply, num_prompt: int = 0) -> TextAgreement:
    """`num_prompt`: tokens of the prompt, for positions; 0 counts from the answer's start."""
    ours, theirs = of_choice(a), of_choice(b)
    if not ours or not theirs:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.text, b.text, strict=False)))
        return TextAgreement(same=a.text == b.text, num_same=shared, num_total=max(len(a.text), len(b.text)))
    pairs = list(zip(ours, theirs, strict=False))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0].token == pair[1].token, pairs))
    points = []
    for index, (p, q) in enumerate(pairs[: shared + 1]):
        aligned = q if q.token == p.token else msgspec.structs.replace(q, token=p.token)  # one context, two choices
        points.append(compare_position(p, aligned, num_prompt + index))
    same = shared == len(ours) == len(theirs)
    return TextAgreement(same=same, num_same=shared, num_total=max(len(ours), len(theirs)), points=points)


async def greedy_agreement(
    reference: Caller,
    candidate: Caller,
    prompts: Sequence[str | list[int]],
    *,
    num_tokens: int = 64,
    num_top: int = 5,
    on_done: Callable[[], None] | None = None,
) -> Agreement:
    """Both servers continue each prompt greedily. Raises LabError if none can be compared."""
    fields = {"max_tokens": num_tokens, "logprobs": num_top, "seed": 0}

    async def ask(caller: Caller, prompt: str | list[int]) -> Reply:
        reply = await caller.complete(prompt, **fields)
        refused = reply.error.startswith("HTTP 4")  # log probabilities, or a seed; other failures are not tried again
        return await caller.complete(prompt, max_tokens=num_tokens) if refused else reply

    async def one(prompt: str | list[int]) -> tuple[str, TextAgreement | None]:
        a, b = await ask(reference, prompt), await ask(candidate, prompt)
        if a.error or b.error:
            return a.error or b.error, None
        return "", compare_replies(a, b, len(prompt) if isinstance(prompt, list) else 0)

    found = await candidate.map(one, prompts, on_done)
    texts = [text for _, text in found if text is not None]
    if not texts:
        raise LabError("no prompt could be compared", seen=found[0][0] if found else "no prompts")
    names = {"reference": await reference.model(), "candidate": await candidate.model()}
    points = [text.points for text in texts if text.points]
    num_parted = sum(not text.same for text in texts)
    num_compared = sum(text.num_same + (not text.same) for text in texts)
    return Agreement(
        **names,
        unit="tokens" if points else "characters",
        num_failed=len(found) - len(texts),
        whole=share_estimate(sum(text.same for text in texts), len(texts)),
        part_rate=share_estimate(num_parted, num_compared),
        texts=tuple(texts),
        divergence=summarise(points, method="generated", num_top=num_top, **names) if points else None,
    )
