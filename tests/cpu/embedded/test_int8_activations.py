"""What rounding activations to eight bits costs the embedded model: little, on text it has not made itself."""

from __future__ import annotations

import pytest
import torch
from tests.cpu.embedded.prompts import long_text

from paceline import LLM, SamplingParams
from paceline.runtime.kernels.dispatch import choose

LOOK = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)


@pytest.mark.model("smollm2-135m")
def test_the_model_still_expects_the_text_and_what_it_expected() -> None:
    if choose("gguf_int8_linear", "cpu", torch.float32, "fast").name == "none":
        pytest.skip("this CPU has no kernel for it")
    surprise, first = [], []
    for kind in ("float", "int8"):
        with LLM("smollm2-135m", dtype="float32", activation_dtype=kind, max_model_len=1024, max_num_seqs=1) as llm:
            (answer,) = llm.generate([long_text(40)], LOOK)
        assert answer.prompt_logprobs is not None
        entries = [entry for entry in answer.prompt_logprobs if entry is not None]
        assert len(entries) > 300
        surprise.append(-sum(entry.logprob for entry in entries) / len(entries))
        first.append([entry.top[0][0] for entry in entries])
    assert abs(surprise[1] - surprise[0]) < 0.02
    equal = sum(a == b for a, b in zip(*first, strict=True)) / len(first[0])
    assert 0.9 < equal < 1.0  # equal everywhere: nothing was rounded
