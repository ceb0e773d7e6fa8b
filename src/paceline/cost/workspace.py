"""Workspace of the worst step a configuration admits, by formula: the activations line of the memory ledger.

Not covered: what an allocator keeps beyond what is live (the ledger's margin is for that).
"""

from __future__ import annotations

import msgspec

from paceline.contracts.specs import ModelSpec
from paceline.cost.memory import format_bytes

LOGITS_COPIES = 5  # float32: logits, the raw copy kept for log-probabilities, rows taken of it, exp of those, a mask


class WorstStep(msgspec.Struct, frozen=True, kw_only=True):
    """The largest step a configuration admits."""

    num_tokens: int  # full budget
    num_rows: int  # full row table
    num_logit_rows: int  # positions whose logits exist at once (sampled rows, or a chunk with prompt logprobs)
    context_tokens: int  # longest sequence
    chunk_tokens: int  # most tokens of one row in the step
    logprobs: bool = True


class AttentionWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """How the attention in use spends memory, as its executor states it."""

    gathered_tokens: int  # K and V positions copied out of the cache at once
    score_elements: int  # query x key scores held at once, over all heads
    copies: int = 1  # of the gathered K and V (2: repeated for query heads, or cast)


def worst_attention(spec: ModelSpec, step: WorstStep, *, kv_budget_tokens: int) -> AttentionWorkspace:
    """Workspace of attention that gathers whole contexts: one long prefill row, or every row decoding at full length.

    A step cannot read more context than the cache holds, hence `kv_budget_tokens`.
    """
    prefill_scores = spec.num_heads * step.chunk_tokens * step.context_tokens
    contexts = min(step.num_rows * step.context_tokens, max(kv_budget_tokens, step.context_tokens))
    decode_scores = spec.num_heads * contexts
    return AttentionWorkspace(gathered_tokens=contexts, score_elements=max(prefill_scores, decode_scores), copies=2)


def activation_bytes(
    spec: ModelSpec, step: WorstStep, *, dtype_bytes: int, attention: AttentionWorkspace
) -> tuple[int, str]:
    """Peak workspace of one step in bytes, and the formula with its numbers.

    With T tokens, S logit rows, h hidden, q = query heads x head dim, k = KV heads x head dim, m intermediate, b bytes:

        hidden      3 T h b                 residual stream, normalised input, a layer's output
        layer       max of the two below: they never live together
          attention T (2 q + 2 k) b         packed q, k, v and the output
                    + copies x 2 G k b      G gathered positions of K and of V
                    + 2 x 4 x scores        float32 scores and their exponentials
          mlp       T 3 m b                 gate, up and their product
        logits      5 copies x S V x 4      float32, with log-probabilities; 3 without (logits, rows taken, exp)
    """
    query = spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    hidden = 3 * step.num_tokens * spec.hidden_size * dtype_bytes
    projections = step.num_tokens * (2 * query + 2 * kv) * dtype_bytes
    gathered = attention.copies * 2 * attention.gathered_tokens * kv * dtype_bytes
    scores = 2 * 4 * attention.score_elements
    mlp = step.num_tokens * 3 * spec.intermediate_size * dtype_bytes
    layer = max(projections + gathered + scores, mlp)
    copies = LOGITS_COPIES if step.logprobs else 3
    logits = copies * step.num_logit_rows * spec.vocab_size * 4
    how = (
        f"worst step: {step.num_tokens} tokens, {step.num_rows} rows, context {step.context_tokens}; hidden "
        f"{format_bytes(hidden)}, attention or mlp {format_bytes(layer)}, logits of {step.num_logit_rows} rows "
        f"{format_bytes(logits)}"
    )
    # Logits are computed after the last layer: its workspace is gone by then.
    return hidden + max(layer, logits), how
