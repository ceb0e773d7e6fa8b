"""A model folder as one downloads it (config.json, model.safetensors, tokenizer.json), tiny and random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from paceline.hub.config_json import spec_from_config
from paceline.runtime.loader.dummy import dummy_weights

SPECIALS = ("<|pad|>", "<|start|>", "<|end|>")
START, END = 1, 2
CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
CHAT_TEMPLATE = "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": len(SPECIALS) + len(CHARACTERS),
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": START,
    "eos_token_id": END,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_model(folder: Path, *, seed: int = 0, chat_template: str | None = None, **config: Any) -> Path:
    """One token is one printable ASCII character. Ids from the end of those to `vocab_size` have no text.

    Weights are scaled so that a text hangs on all that came before it and its likeliest continuation is not one
    character for ever.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**_CONFIG, **config}
    spec = spec_from_config(config, name="tiny", where=str(folder))
    weights = dict(dummy_weights(spec, seed=seed, dtype=None))
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "q_proj.weight", "lm_head.weight")):
            weight *= 4.0
    if not spec.tie_word_embeddings:
        weights["lm_head.weight"][: len(SPECIALS)] = 0.0  # specials are unlikely
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer_config: dict[str, Any] = {"bos_token": SPECIALS[START], "eos_token": SPECIALS[END], "add_bos_token": True}
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "tokenizer.json").write_text(_tokenizer())
    return folder


def _tokenizer() -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = {" ": "Ġ", "\n": "Ċ"}  # how byte-level vocabularies write these two
    vocabulary = {token: index for index, token in enumerate(SPECIALS)}
    for character in CHARACTERS:
        vocabulary[alphabet.get(character, character)] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    text: str = backend.to_str()
    return text
