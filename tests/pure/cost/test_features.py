from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.fakes.plans import make_admit, make_plan

from paceline.contracts.ports import StepShape, plan_shape
from paceline.contracts.step import Logits
from paceline.cost import decode_shape, features, joined, prefill_shape
from paceline.cost.features import NAMES, NUM_FEATURES


def test_the_curve_over_positions_is_cut_at_its_knots() -> None:
    for tokens in (1, 8, 9, 32, 128, 129, 512, 700):
        pieces = features(prefill_shape(tokens))[1:6]
        assert sum(pieces) == tokens
        lengths = (8, 24, 96, 384, 1 << 30)
        for piece, length, later in zip(pieces, lengths, (*pieces[1:], 0.0), strict=True):
            assert 0 <= piece <= length
            assert later == 0 or piece == length


def test_decoding_rows_have_no_pairs_beyond_what_every_step_has() -> None:
    amounts = dict(zip(NAMES, features(decode_shape(5, 100)), strict=True))
    assert amounts["pairs"] == 0
    assert (amounts["rows"], amounts["logits"], amounts["context"]) == (5, 5, 500)


def test_a_chunks_pairs_are_those_of_its_queries_with_everything_before_them() -> None:
    amounts = dict(zip(NAMES, features(prefill_shape(3, 10)), strict=True))
    assert amounts["pairs"] == (11 + 12 + 13) - 10 - 3


def test_a_shape_without_pairs_counts_with_the_fewest_there_can_be() -> None:
    bare = StepShape(num_tokens=4, num_rows=4, num_sampled=4, context_tokens=40)
    assert features(bare) == features(decode_shape(4, 10))
    assert joined(bare, bare) == decode_shape(8, 10)


@pytest.mark.parametrize("column", ["num_tokens", "num_rows", "num_sampled", "context_tokens", "num_prompt_logits"])
def test_no_column_of_a_shape_takes_from_the_amounts_in_all(column: str) -> None:
    shape = joined(decode_shape(3, 50), prefill_shape(20, 70))
    more = msgspec.structs.replace(shape, **{column: getattr(shape, column) + 1})
    prices = np.ones(NUM_FEATURES)
    assert prices @ np.array(features(more)) >= prices @ np.array(features(shape))


def test_a_plans_shape_counts_the_logits_of_prompt_positions() -> None:
    plan = make_plan(0, [(0, 0, 5, True), (1, 2, 3, True)], admits=[make_admit(0, [1] * 5), make_admit(1, [1] * 5)])
    assert plan_shape(plan).num_prompt_logits == 0
    plan.logits[1] = Logits.ALL
    shape = plan_shape(plan)
    assert (shape.num_tokens, shape.num_sampled, shape.num_prompt_logits) == (8, 2, 3)
    assert features(shape)[NAMES.index("logits")] == 5
