"""Workspace of the worst step a configuration admits, by formula: the activations line of the memory ledger.

Symbols: T tokens and R rows of the step, C longest context, h hidden size, q = query heads x head dim,
k = KV heads x head dim (of a latent model, 2 k is what it caches of a token), m intermediate size (of a mixture, all
that one token goes through), S rows of logits at once, V vocabulary, b bytes of the compute type.
Each formula follows the tensors of the code it speaks of. Parts of a step that are never alive together are added all
the same: an allocator keeps what one part freed while the next asks for other sizes. Compared with measured peaks of
three families, six shapes of steps, both numerics (float32, glibc): 1.05 to 2.4 times what was measured, median 1.5.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from paceline.contracts.kv import ceil_div
from paceline.contracts.request import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from paceline.contracts.specs import ModelSpec
from paceline.cost.memory import format_bytes

LOGITS_COPIES = 5  # float32: logits, the raw copy kept for log-probabilities, rows taken of it, exp of those, a mask
PLAIN_LOGITS_COPIES = 3  # logits, rows taken of it, exp of those
GATHER_ELEMENTS = 1 << 20  # K and V elements that fast attention gathers at once for decode rows, or one row's
MASKED_QUERIES = 256  # queries per masked piece of fast prefill
QUERY_TILE, KV_TILE = 16, 256  # of reference attention
PROMPT_LOGITS = 1 << 22  # logits computed at once for the log-probabilities of a prompt ...
COMPILED_BYTES = 576 << 10  # of one product; measured: 558 to 574 KiB for three shapes of weight (torch 2.13, AVX2)
PROMPT_COPIES = 4  # ... and tensors of that size: logits, exp, comparison, best of them
CACHE_LINE = 64  # bytes; rows of rounded activations are padded to it
ROUNDED_BLOCK = 6  # rows of 8 bits lie in blocks of 6 or more, nearly equal in height, each with at most one empty row
# A reported (id, log-probability) as Python objects: a pair, its two numbers, their places in the lists they pass.
REPORTED_BYTES = 128
REPORTED_PAIRS = 1 + MAX_LOGPROBS + MAX_LOGPROB_TOKEN_IDS


class WorstStep(msgspec.Struct, frozen=True, kw_only=True):
    """The largest step a configuration admits."""

    num_tokens: int  # T: full budget
    num_rows: int  # R: full row table
    num_logit_rows: int  # S: positions whose logits exist at once
    context_tokens: int  # C: longest sequence
    logprobs: bool = True


def worst_step(spec: ModelSpec, *, num_tokens: int, num_rows: int, context_tokens: int) -> WorstStep:
    """Full budget, full row table, longest context, every row drawing with log-probabilities."""
    return WorstStep(
        num_tokens=num_tokens,
        num_rows=num_rows,
        num_logit_rows=num_rows,
        context_tokens=min(context_tokens, spec.max_model_len),
    )


def cached_width(spec: ModelSpec) -> int:
    """Numbers that one token leaves in the cache of one layer, 2 k above."""
    return spec.kv_bytes_per_token_per_layer(1)


def mlp_width(spec: ModelSpec) -> int:
    """Width of the widest MLP one token goes through."""
    x = spec.experts
    routed = 0 if x is None else x.num_active * x.intermediate_size + x.shared_intermediate_size
    dense = 0 if all(layer.routed for layer in spec.layers) else spec.intermediate_size
    return max(routed, dense)


def fast_attention_bytes(spec: ModelSpec, step: WorstStep, dtype_bytes: int, *, widened: bool = False) -> int:
    """Attention that gathers blocks and multiplies them in batches.

    Kept from step to step: gathered K and V for decode, for a shared prefix and for a prefill chunk, each up to one
    whole context. On top, the larger of

        decode      3 x 4 heads R C          float32 scores over a shared prefix, their concatenation, their softmax
        prefill     2 x 4 heads 256 C        only with soft-capped scores; else products are tiled

    and masks, 2 x 4 T x what a query may see, where a window or a soft-cap needs them. `widened`: half precision that
    is computed in float32, so gathered twice.
    """
    context = cached_width(spec) * step.context_tokens
    element_bytes = dtype_bytes + 4 if widened else dtype_bytes
    gathered = (max(GATHER_ELEMENTS, context) + 2 * context) * element_bytes
    scores = 3 * 4 * spec.num_heads * step.num_rows * step.context_tokens
    seen = 0
    if spec.attention_softcap is not None:
        scores = max(scores, 2 * 4 * spec.num_heads * MASKED_QUERIES * step.context_tokens)
        seen = step.context_tokens
    windows = [layer.window for layer in spec.layers if layer.window is not None]
    if windows:
        seen = max(seen, min(step.context_tokens, max(windows) + MASKED_QUERIES))
    return gathered + scores + 2 * 4 * step.num_tokens * seen


def tiled_attention_bytes(spec: ModelSpec, step: WorstStep, num_groups: int) -> int:
    """Reference attention: A tiles of 16 queries against tiles of 256 slots, all in float32.

    gathered    3 x 2 x A 256 k x 4      as read, split, with dead slots cleared
    scores      4 x A heads 16 x 256 x 4
    state       6 x A 16 q x 4           queries, running maximum, sum and mix, and their copies
    masks       A 16 C bytes             for each KV group
    """
    tiles = step.num_rows + ceil_div(step.num_tokens, QUERY_TILE)
    query = spec.num_heads * spec.head_dim
    gathered = 3 * tiles * KV_TILE * cached_width(spec) * 4
    scores = 4 * tiles * spec.num_heads * QUERY_TILE * KV_TILE * 4
    state = 6 * tiles * QUERY_TILE * query * 4
    masks = num_groups * tiles * QUERY_TILE * ceil_div(step.context_tokens, KV_TILE) * KV_TILE
    return gathered + scores + state + masks


def compiled_products_bytes(num_tokens: int) -> int:
    """What oneDNN keeps of the float32 products it compiles, once steps of every size up to `num_tokens` have come.

    Each of five shapes of weight (q k v, attention's output, gate and up, down, the head) has a product for each number
    of rows that is computed: runtime/kernels/torch_cpu/linear.py pads to few, all of them counted here.
    """
    counts = {ceil_div(n, step) * step for n in range(1, num_tokens + 1) for step in [max(1, 1 << n.bit_length() >> 4)]}
    return 5 * len(counts) * COMPILED_BYTES


def activation_bytes(
    spec: ModelSpec, step: WorstStep, *, dtype_bytes: int, attention_bytes: int, widened: bool = False
) -> tuple[int, str]:
    """Peak workspace of one step in bytes, and the formula with its numbers.

        hidden      3 T h b                  residual stream, normalised input, a layer's output
        projections T (2 q + 2 k) b          packed q, k, v and the output; `attention_bytes` on top
        mlp         T 5 m b                  gate, up, activation and its intermediate, product
                    T 3 m b + U (1.5 n + 64) if that is more, n the largest of h, q, m: gate, up, activation, and what
                                             enters a product rounded to 8 bits with its scales (1.25 n; Q6_K 1.5 n),
                                             in U = T + T / 6 rows
                    T 3 m b + T (2 n + 64)   if that is more: rounded to bfloat16
        logits      5 copies x S V x 4       float32, with log-probabilities; 3 without
        prompt      4 copies x slice x 4     log-probabilities of a prompt, a slice of positions at a time
        reported    (T + S) 149 x 128        what every position may report: itself, 20 alternatives, 128 ids by name

    `widened` as in `fast_attention_bytes`.
    """
    query, width = spec.num_heads * spec.head_dim, mlp_width(spec)
    element_bytes = dtype_bytes + 4 if widened else dtype_bytes
    hidden = 3 * step.num_tokens * spec.hidden_size * element_bytes
    projections = step.num_tokens * (2 * query + cached_width(spec)) * element_bytes
    widest = max(spec.hidden_size, query, width)
    int8_rows = step.num_tokens + ceil_div(step.num_tokens, ROUNDED_BLOCK)
    rounded = max(int8_rows * (3 * widest // 2 + CACHE_LINE), step.num_tokens * (2 * widest + CACHE_LINE))
    active = step.num_tokens * width * element_bytes
    mlp = max(5 * active, 3 * active + rounded)
    copies = LOGITS_COPIES if step.logprobs else PLAIN_LOGITS_COPIES
    logits = copies * step.num_logit_rows * spec.vocab_size * 4
    if step.logprobs:
        logits += PROMPT_COPIES * max(PROMPT_LOGITS, spec.vocab_size) * 4
        logits += (step.num_tokens + step.num_logit_rows) * REPORTED_PAIRS * REPORTED_BYTES
    total = hidden + projections + attention_bytes + mlp + logits
    how = (
        f"worst step: {step.num_tokens} tokens, {step.num_rows} rows, context {step.context_tokens}; hidden "
        f"{format_bytes(hidden + projections)}, attention {format_bytes(attention_bytes)}, mlp {format_bytes(mlp)}, "
        f"logits {format_bytes(logits)}"
    )
    return total, how


def step_workspace(
    spec: ModelSpec,
    *,
    num_tokens: int,
    num_rows: int,
    dtype_bytes: int,
    num_groups: int,
    reference: bool = False,
    widened: bool = False,
) -> Callable[[int], tuple[int, str]]:
    """The workspace of the worst step as a function of the longest sequence: what `plan_memory` asks for.

    The one path from a configuration to its activations, for the engine and for plans of it. `reference`: attention of
    the reference numerics.
    """

    def activations(max_model_len: int) -> tuple[int, str]:
        worst = worst_step(spec, num_tokens=num_tokens, num_rows=num_rows, context_tokens=max_model_len)
        if reference:
            attention = tiled_attention_bytes(spec, worst, num_groups)
        else:
            attention = fast_attention_bytes(spec, worst, dtype_bytes, widened=widened)
        return activation_bytes(spec, worst, dtype_bytes=dtype_bytes, attention_bytes=attention, widened=widened)

    return activations
