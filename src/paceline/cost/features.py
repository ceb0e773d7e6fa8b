"""From the size of a step to the columns its time is a weighted sum of.

A step's time is a fixed part, a curve over its positions, and prices per row, per row of logits, per token of context
that is read and per pair of query and key beyond those. The curve is linear between knots: its weights are the slopes
of its pieces, so weights of zero or more make any curve that never falls, flat while weights are read and steep once
arithmetic is the bound, and the sum stays linear in what is learnt.

Every position sees itself and every row reads its context at least once, so `context + positions` pairs are there in
any step; only those beyond (a chunk's attention) are a column of their own. A step of decode rows alone has none.

Not in a shape, so not priced: windows (a sliding layer reads less than the context), what a row's sampling asks for.
"""

from __future__ import annotations

from paceline.contracts.ports import StepShape, decoding_shape

KNOTS = (8, 32, 128, 512)  # positions at which the curve may bend
NAMES = (
    "fixed",
    "tokens to 8",
    "tokens to 32",
    "tokens to 128",
    "tokens to 512",
    "tokens beyond",
    "rows",
    "logits",
    "context",
    "pairs",
)
NUM_FEATURES = len(NAMES)


def features(shape: StepShape) -> tuple[float, ...]:
    """[NUM_FEATURES] amounts of one step, each growing with the shape; prices are ms per unit.

    `attention_pairs` left at 0 counts as the fewest there can be.
    """
    tokens, context = shape.num_tokens, shape.context_tokens
    pairs = shape.attention_pairs - context - tokens
    first, second, third, fourth = KNOTS
    return (
        1.0,
        float(tokens if tokens < first else first),
        float(0 if tokens <= first else min(tokens, second) - first),
        float(0 if tokens <= second else min(tokens, third) - second),
        float(0 if tokens <= third else min(tokens, fourth) - third),
        float(0 if tokens <= fourth else tokens - fourth),
        float(shape.num_rows),
        float(shape.num_sampled + shape.num_prompt_logits),
        float(context),
        float(pairs if pairs > 0 else 0),
    )


def decode_shape(num_rows: int, context: int) -> StepShape:
    """One token for each of `num_rows` rows that hold `context` tokens each."""
    return decoding_shape(num_rows, num_rows * context)
