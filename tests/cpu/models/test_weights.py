"""Loading: what does not fit is refused by name, with the shape that was wanted and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from tests.cpu.models.families import hf_model, spec_of, stream_of

from paceline.errors import ModelError, UnsupportedError
from paceline.runtime.layers import BuildContext
from paceline.runtime.models import build_model, families

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def twin() -> Any:
    return hf_model("llama")


def load(twin: Any, stream: Any) -> None:
    build_model(spec_of(twin), BuildContext()).load_weights(stream)


def without(twin: Any, *names: str) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, tensor) for name, tensor in stream_of(twin) if name not in names)


def test_a_missing_tensor_is_named(twin: Any) -> None:
    with pytest.raises(ModelError, match=r"incomplete.*missing: model\.layers\.1\.self_attn\.q_proj.*\(96, 48\)"):
        load(twin, without(twin, Q))


def test_many_missing_tensors_are_counted(twin: Any) -> None:
    with pytest.raises(ModelError, match=r"and \d+ more"):
        load(twin, [])


def test_a_misshapen_tensor_is_named_with_both_shapes(twin: Any) -> None:
    stream = [*without(twin, Q), (Q, torch.zeros(95, 48))]
    with pytest.raises(ModelError, match=r"q_proj\.weight.*wrong shape; seen: \(95, 48\); expected: \(96, 48\); fix: "):
        load(twin, stream)


def test_an_unexpected_tensor_is_named(twin: Any) -> None:
    stream = [*stream_of(twin), ("model.layers.9.self_attn.q_proj.weight", torch.zeros(96, 48))]
    with pytest.raises(ModelError, match=r"model\.layers\.9.*has no place.*names such as model\.layers\.0\.self_attn"):
        load(twin, stream)


def test_a_repeated_tensor_is_refused(twin: Any) -> None:
    with pytest.raises(ModelError, match="comes twice"):
        load(twin, [*stream_of(twin), (Q, dict(stream_of(twin))[Q])])


def test_integer_tensors_are_refused(twin: Any) -> None:
    with pytest.raises(ModelError, match="not of a float type"):
        load(twin, [*without(twin, Q), (Q, torch.zeros(96, 48, dtype=torch.int8))])


def test_computed_tensors_of_old_exporters_are_skipped(twin: Any) -> None:
    load(twin, [*stream_of(twin), ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(8))])


def test_a_head_beside_a_tied_embedding_is_skipped() -> None:
    load(hf_model("llama-biases"), stream_of(hf_model("llama-biases")))


def test_weight_bytes_are_those_of_the_tensors(twin: Any) -> None:
    model = build_model(spec_of(twin), BuildContext(numerics="reference"))
    model.load_weights(stream_of(twin))
    exact = sum(t.numel() * 4 for _, t in stream_of(twin))
    assert model.weight_bytes == exact
    packed = build_model(spec_of(twin), BuildContext())
    packed.load_weights(stream_of(twin))
    # a packed weight may be filled up to a multiple of 16 outputs
    assert exact <= packed.weight_bytes <= exact + sum(15 * t.shape[-1] * 4 for _, t in stream_of(twin))


def test_unknown_families_are_refused(twin: Any) -> None:
    spec = msgspec.structs.replace(spec_of(twin), family="rwkv")
    with pytest.raises(UnsupportedError, match=f"seen: rwkv; expected: one of {', '.join(families())}"):
        build_model(spec, BuildContext())
