"""Formulas of the worst step's workspace: the stated terms, and never less for more."""

import msgspec
import pytest
from tests.pure.config.specs import GEMMA_270M, LLAMA_8B, SMOLLM2

from paceline.cost.workspace import WorstStep, activation_bytes, fast_attention_bytes, tiled_attention_bytes, worst_step

GEMMA2 = msgspec.structs.replace(GEMMA_270M, family="gemma2", attention_softcap=50.0)


def step(**changed):
    values = {"num_tokens": 64, "num_rows": 16, "num_logit_rows": 16, "context_tokens": 8192}
    return WorstStep(**{**values, **changed})


def test_the_terms_are_the_stated_ones():
    num_bytes, how = activation_bytes(SMOLLM2, step(logprobs=False), dtype_bytes=4, attention_bytes=7)
    hidden, projections, mlp = 3 * 64 * 576 * 4, 64 * (2 * 576 + 2 * 192) * 4, 64 * 5 * 1536 * 4
    assert num_bytes == hidden + projections + mlp + 7 + 3 * 16 * 49152 * 4
    assert "64 tokens, 16 rows, context 8192" in how


def test_log_probabilities_cost_copies_of_logits_a_slice_of_the_prompt_and_what_is_reported():
    with_them, _ = activation_bytes(SMOLLM2, step(), dtype_bytes=4, attention_bytes=0)
    without, _ = activation_bytes(SMOLLM2, step(logprobs=False), dtype_bytes=4, attention_bytes=0)
    reported = (64 + 16) * (1 + 20 + 128) * 128
    assert with_them - without == 2 * 16 * 49152 * 4 + 4 * (1 << 22) * 4 + reported


def test_the_worst_step_draws_in_every_row_with_log_probabilities():
    assert worst_step(SMOLLM2, num_tokens=64, num_rows=16, context_tokens=9999) == step()


def test_fast_attention_gathers_at_most_three_contexts():
    per_context = 2 * 3 * 64 * 8192 * 4
    assert fast_attention_bytes(SMOLLM2, step(), 4) == 3 * per_context + 3 * 4 * 9 * 16 * 8192


def test_windows_and_soft_caps_need_masks():
    plain = msgspec.structs.replace(GEMMA_270M, layers=SMOLLM2.layers[:18])
    window_masks = 2 * 4 * 64 * (512 + 256)
    assert fast_attention_bytes(GEMMA_270M, step(), 4) - fast_attention_bytes(plain, step(), 4) == window_masks
    assert fast_attention_bytes(GEMMA2, step(), 4) > fast_attention_bytes(GEMMA_270M, step(), 4)


def test_widened_halves_are_gathered_twice():
    narrow, wide = (fast_attention_bytes(SMOLLM2, step(num_rows=1), 2, widened=w) for w in (False, True))
    assert wide > 2 * narrow


@pytest.mark.parametrize("spec", [SMOLLM2, GEMMA_270M, GEMMA2, LLAMA_8B], ids=lambda s: s.family)
@pytest.mark.parametrize("field", ["num_tokens", "num_rows", "num_logit_rows", "context_tokens"])
def test_a_larger_step_never_needs_less(spec, field):
    def need(value):
        one = step(**{field: value})
        fast = activation_bytes(spec, one, dtype_bytes=4, attention_bytes=fast_attention_bytes(spec, one, 4))[0]
        tiled = activation_bytes(spec, one, dtype_bytes=4, attention_bytes=tiled_attention_bytes(spec, one, 2))[0]
        return fast, tiled

    needs = [need(v) for v in (1, 16, 64, 250, 8192)]
    assert needs == sorted(needs)
    assert [t for _, t in needs] == sorted(t for _, t in needs)
