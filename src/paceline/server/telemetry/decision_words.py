"""The scheduler's decisions in plain words, for the page and for "why did this request wait"."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.contracts.decision import Decision, Reason

# Fields are the names in `Decision.numbers`, and `other`, the request it waits for or gives way to.
_WORDS: Mapping[Reason, str] = {
    Reason.NO_ROWS: "waits: all {running} rows of the batch are taken",
    Reason.NO_BLOCKS: "waits for KV blocks: {missing} too few are free ({available} available)",
    Reason.NO_BUDGET: "waits: the {budget} tokens of this step are spent",
    Reason.TENANT_SHARE: "waits: its tenant has had its share, and others are about ({running} sequences run)",
    Reason.PREFIX_IN_FLIGHT: "waits for request {other}, which computes {pending_tokens} tokens that both share",
    Reason.LEADER_PREFILL: "waits for request {other}, the first choice of the same call, to compute the prompt",
    Reason.BATCH_WAIT: "waits a moment for others to fill the batch",
    Reason.STATIC_BATCH: "waits for the batch of {running} to end (static batching)",
    Reason.PACE: "waits: beside {running} others it would slow them below their target for a token",
    Reason.LATE: "is late for its target by {late_ms} ms: requests in time go first",
    Reason.TPOT_OUT_OF_REACH: "cannot have a token every {target_ms} ms, even alone ({alone_ms} ms): not scheduled for",
    Reason.AFTER_PREEMPTION: "waits: nothing enters in a step that took room from others",
    Reason.COLD: "starts: {known} tokens, none of them cached",
    Reason.CACHE_HIT: "starts: {cached} of {known} tokens come from the prefix cache",
    Reason.RESUMED: "comes back after giving way: {cached} of {known} tokens are still cached",
    Reason.CHUNKED: "has a long prompt: {tokens} of the {todo} tokens left go into this step",
    Reason.PACED: "has {tokens} of the {todo} tokens left in this step, which may take {step_ms} ms for running rows",
    Reason.FIRST_TOKEN_HELD: "holds its first token, due in {due_ms} ms, so that other prompts are in time",
    Reason.FIRST_TOKEN_FIRST: "goes ahead: {left_out} rows of tenants above their part skip a step, {saved_ms} ms less",
    Reason.BLOCKS_FOR_DECODE: "gives way: request {other} needs its KV blocks to go on",
    Reason.ROW_FOR_PRIORITY: "gives its row to request {other}, which is more urgent",
    Reason.ROW_FOR_SHARE: "gives its row to request {other}, whose tenant runs less than its part",
    Reason.BLOCKS_FOR_PRIORITY: "gives its KV blocks to request {other}, which is more urgent",
    Reason.CACHE_RESET: "starts over: the cache was reset",
    Reason.NEVER_FITS: "refused: {known} tokens do not fit the KV cache, even alone",
    Reason.TOO_LONG: "refused: longer than the model allows",
    Reason.INVALID: "refused: not a valid request",
    Reason.QUEUE_REQUESTS: "refused: too many requests wait",
    Reason.QUEUE_TOKENS: "refused: too many tokens wait",
    Reason.TOO_LATE: "refused: its first token would come after {predicted_ms} ms, its target is {target_ms} ms",
    Reason.STOP_TOKEN: "ends with a stop token, {output} tokens out",
    Reason.STOP_STRING: "ends with a stop string, {output} tokens out",
    Reason.GRAMMAR_END: "ends because its grammar is complete, {output} tokens out",
    Reason.LENGTH: "ends at its limit, {output} tokens out",
    Reason.ABORTED: "ended by its client, {output} tokens out",
    Reason.DEADLINE: "ended: its time was up, {output} tokens out",
    Reason.QUEUE_TIMEOUT: "ended: it waited too long",
    Reason.FAULT: "ended by an error of its own, {output} tokens out",
}


class _Numbers(dict[str, str]):
    """What the scheduler did not say reads as "some"."""

    def __missing__(self, key: str) -> str:
        return "some"


def in_words(decision: Decision) -> str:
    """One short sentence without its subject (the request): `waits: all 4 rows of the batch are taken`."""
    numbers = _Numbers({name: f"{value:,.0f}" for name, value in decision.numbers.items()})
    if decision.other is not None:
        numbers["other"] = str(decision.other)
    if "behind" in decision.numbers:  # derived from queue order: it carries the reason of the first in line
        return f"waits behind request {numbers['other']} and {numbers['behind']} in all"
    if decision.reason is Reason.BLOCKS_FOR_DECODE and decision.other == decision.request_id:
        return "gives way: no KV block is left for its next token"
    return _WORDS[decision.reason].format_map(numbers)


__all__ = ["in_words"]
