"""A tiny random model of every byte: its text is any text, cut inside characters wherever it likes."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<|start|>assistant: "
SPECIALS = ("<|pad|>", "<|start|>", "<|end|>")  # those of model_folder, which needs torch
VOCAB_SIZE = len(SPECIALS) + 256


def byte_tokenizer_json() -> str:
    """`tokenizer.json` of a vocabulary of the specials and the 256 bytes, in the order of their byte-level signs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(SPECIALS)}
    for sign in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[sign] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    text: str = backend.to_str()
    return text


def write_byte_model(folder: Path, *, seed: int = 0) -> Path:
    """A folder as one downloads it, with a chat template."""
    from tests.fakes import model_folder

    assert model_folder.SPECIALS == SPECIALS
    model_folder.write_model(folder, seed=seed, chat_template=TEMPLATE, vocab_size=VOCAB_SIZE)
    (folder / "tokenizer.json").write_text(byte_tokenizer_json())
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == VOCAB_SIZE
    return folder
