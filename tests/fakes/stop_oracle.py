"""The stop rules written down naively, on a finished stream of tokens: the engine must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.contracts.request import Request


@dataclass(frozen=True)
class Ending:
    token_ids: list[int]  # prior output not included
    finish: str  # stop or length
    stop_reason: int | str | None
    text: bytes  # prior output and the tokens kept, the stop cut off


def apply_stop_rules(
    request: Request,
    new_tokens: Sequence[int],
    token_bytes: Sequence[bytes],
    eos: Sequence[int],
    limit: int,
    *,
    complete: int | None = None,
) -> Ending:
    """`new_tokens`: at least as many as can be kept. `limit`: new tokens at which it ends by length; `complete`: at
    which its grammar is."""
    sampling = request.sampling
    stop_ids = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos))
    num_prior = len(request.prior_output)
    tokens = [*request.prior_output, *new_tokens]
    begins: list[int] = []
    text = b""
    since = 0  # a match may not begin before this byte
    for index, token in enumerate(tokens):
        may_stop = index >= sampling.min_tokens and index >= num_prior
        begin = len(text)
        begins.append(begin)
        at_end = index + 1 - num_prior == complete
        if (may_stop or at_end) and token in stop_ids:
            # an id's text is shown only when the caller wants stops included
            shown = text + token_bytes[token] if sampling.include_stop_str_in_output else text
            return Ending(tokens[num_prior : index + 1], "stop", token, shown)
        text += token_bytes[token]
        for end in range(begin + 1, len(text) + 1):
            found = [s for s in request.stop_strings if end - len(s) >= since and text[:end].endswith(s)]
            if not found:
                continue
            if not may_stop:
                since = end
                continue
            longest = max(found, key=len)
            keep_to = end if sampling.include_stop_str_in_output else end - len(longest)
            ends = [*begins[1:], len(text)]
            kept = max((k + 1 for k in range(index + 1) if begins[k] < keep_to or ends[k] <= keep_to), default=0)
            return Ending(tokens[num_prior : max(kept, num_prior)], "stop", longest.decode(), text[:keep_to])
        if at_end:
            return Ending(tokens[num_prior : index + 1], "stop", None, text)
        if index + 1 - num_prior >= limit:
            return Ending(tokens[num_prior : index + 1], "length", None, text)
    raise AssertionError("not enough tokens given")
