"""The embedded models' GGUF files: the weights transformers reads from them and the ones streamed here, bit for bit."""

import functools

import gguf
import pytest
import torch
import transformers

from paceline.config import read_environment
from paceline.hub import describe, resolve
from paceline.runtime.loader import open_weights


@pytest.mark.long  # transformers takes most of a minute over these files
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("smollm2-135m", marks=pytest.mark.model("smollm2-135m")),
        pytest.param("gemma3-270m", marks=pytest.mark.model("gemma3-270m")),
    ],
)
def test_weights_are_those_transformers_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))  # it would parse the file several times
    files = resolve(name, read_environment().home, download=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        files.path.parent, gguf_file=files.path.name, dtype=torch.float32
    )
    spec, config = describe(files), model.config
    wanted = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
    seen = set()
    for key, value in open_weights(files, spec):
        assert torch.equal(value, wanted[key]), key
        seen.add(key)
    assert seen == set(wanted)
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    assert (spec.num_layers, spec.hidden_size, spec.head_dim) == (
        config.num_hidden_layers,
        config.hidden_size,
        config.head_dim,
    )
    assert spec.rms_norm_eps == pytest.approx(config.rms_norm_eps, rel=1e-6)
    assert config.eos_token_id in spec.eos_token_ids
    if hasattr(config, "layer_types"):
        assert [f"{layer.attention}_attention" for layer in spec.layers] == config.layer_types
        assert {layer.window for layer in spec.layers} == {None, config.sliding_window}
    for layer in spec.layers:
        rope = config.rope_parameters
        assert layer.rope.theta == rope.get(f"{layer.attention}_attention", rope)["rope_theta"]
