"""Sizes of a GGUF file's model, for the roofline."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.engines.roofline import Sizes

from paceline import hub
from paceline.assemble.files import find_files
from paceline.config import load_config, read_environment


def sizes_of(path: Path) -> Sizes:
    """Every matrix is multiplied once for a token; the head is the table of embeddings where they are tied, and else
    the table is only looked up."""
    files = find_files(load_config(None, {"model": str(path)}), read_environment())
    spec = hub.describe(files)
    tensors = hub.GGUFFile(files.path).tensors
    head = "token_embd.weight" if spec.tie_word_embeddings else "output.weight"
    multiplied = {
        name: tensor
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2 and (name == head or name != "token_embd.weight")
    }
    numbers = {name: tensor.shape[0] * tensor.shape[1] for name, tensor in multiplied.items()}
    return Sizes(
        weight_bytes=sum(tensor.num_bytes for tensor in multiplied.values()),
        num_linear=sum(numbers.values()) - numbers[head],
        num_head=numbers[head],
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
    )
