"""Finds models, fetches them and says what they are. No torch: the planner and the tokenizer read model files through
here.

`resolve` turns what a user calls a model into files on disk, fetching them when needed; `describe` reads a `ModelSpec`
from them, with every tensor's place checked; `GGUFFile` reads GGUF metadata and raw tensors. May import contracts and
errors; reads no environment variable (the cache folder and hub access are arguments) and runs nothing it fetched.
"""

from __future__ import annotations

from paceline.hub.aliases import ALIASES
from paceline.hub.describe import describe
from paceline.hub.files import ModelFiles
from paceline.hub.gguf_file import GGUFFile
from paceline.hub.hugging_face import HubAccess
from paceline.hub.resolve import Stored, remove, resolve, stored

__all__ = [
    "ALIASES",
    "GGUFFile",
    "HubAccess",
    "ModelFiles",
    "Stored",
    "describe",
    "remove",
    "resolve",
    "stored",
]
