"""The packaged GGUF file as a folder of floats, for engines that read no GGUF: the same weights and tokens.

    python make_model.py FILE.gguf FOLDER float32|bfloat16

Weights are what the file's blocks stand for, rounded only where bfloat16 is asked. Only for SmolLM2 and what is shaped
like it (llama in GGUF, its own kind of splitting words); needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTROL = 3  # type of a token in GGUF


class Fields:
    def __init__(self, path: Path) -> None:
        self._fields = GGUFReader(str(path)).fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name].contents()


def tokenizer_of(fields: Fields) -> PreTrainedTokenizerFast:
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    # what llama.cpp calls "smollm": single digits, then GPT-2's split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
    )
    wrapped.chat_template = fields["tokenizer.chat_template"]
    wrapped.model_max_length = int(fields["llama.context_length"])
    return wrapped


def config_of(fields: Fields) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(fields["llama.rope.freq_base"]),
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[3] not in ("float32", "bfloat16"):
        raise SystemExit("usage: make_model.py FILE.gguf FOLDER float32|bfloat16")
    path, folder, dtype = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), getattr(torch, sys.argv[3])
    fields = Fields(path)
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model = LlamaForCausalLM(config_of(fields))  # a plain one: what was read from GGUF cannot be saved
    missing = model.load_state_dict(read.state_dict(), strict=False)
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        raise SystemExit(f"{path} does not fit: {missing}")
    model = model.to(dtype)
    model.config.dtype = dtype
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer_of(fields).save_pretrained(folder)
    # both spellings, for readers of an older config.json
    config = json.loads((folder / "config.json").read_text())
    config |= {"rope_theta": float(fields["llama.rope.freq_base"]), "torch_dtype": config.get("dtype")}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "done").write_text("")


if __name__ == "__main__":
    main()
