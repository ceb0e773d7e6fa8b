"""What a prefix cache can give back under a plan: the hit rate to expect."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.contracts.workload import PlannedRequest


def reusable_tokens(
    requests: Iterable[PlannedRequest], *, primed: bool = False, block_tokens: int = 16
) -> list[tuple[int, int]]:
    """(tokens at the front that an earlier request had, prompt tokens) for each request in order of the plan.

    For an endless cache of whole blocks that earlier requests have filled in time, so it is what can be hit, not what
    will be. A template's own tokens at the front are left out. `primed`: every prefix group has been sent before.
    Prompts of later turns hold the turns before, answers included, all of it reusable.
    """
    seen: set[tuple[object, ...]] = set()
    history: dict[int | None, int] = {}
    found: list[tuple[int, int]] = []
    for r in requests:
        if r.turn > 0:
            before = history[r.session]
            history[r.session] = before + r.num_input_tokens + r.num_output_tokens
            found.append((before // block_tokens * block_tokens, before + r.num_input_tokens))
            continue
        history[r.session] = r.num_input_tokens + r.num_output_tokens
        chain: tuple[object, ...] = (r.tenant, r.stream, r.prefix_group) if r.prefix_group is not None else (r.tenant,)
        known = r.prefix_group is not None and (primed or chain in seen)
        hit, whole = (r.num_prefix_tokens if known else 0), r.prefix_group is None or known
        seen.add(chain)
        for passage in r.shared:
            chain = (*chain, passage)
            whole = whole and chain in seen
            hit += r.num_shared_tokens if whole else 0
            seen.add(chain)
        hit = min(hit, r.num_input_tokens - 1)
        found.append((hit // block_tokens * block_tokens, r.num_input_tokens))
    return found


def expected_hit(requests: Iterable[PlannedRequest], *, primed: bool = False, block_tokens: int = 16) -> float:
    """Share of prompt tokens that can come from the cache."""
    pairs = reusable_tokens(requests, primed=primed, block_tokens=block_tokens)
    return sum(hit for hit, _ in pairs) / max(1, sum(total for _, total in pairs))
