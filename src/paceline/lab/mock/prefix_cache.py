"""The mock's prefix cache: full blocks of words, each known by the hash of everything up to its end."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """`block_tokens` words to a block; `max_blocks` kept, the least recently used forgotten first."""

    def __init__(self, block_tokens: int, max_blocks: int | None = None) -> None:
        self._block_tokens = block_tokens
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self.num_queried = 0  # tokens looked for
        self.num_hit = 0  # of them, those found

    def __len__(self) -> int:
        return len(self._blocks)

    def keys(self, words: Sequence[str], salt: str) -> list[bytes]:
        """One key for each full block. Prompts of different salts share nothing."""
        size = self._block_tokens
        key = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        keys = []
        for start in range(0, len(words) - size + 1, size):
            block = "\0".join(words[start : start + size]).encode("utf-8", "surrogatepass")
            key = hashlib.blake2b(key + block, digest_size=16).digest()
            keys.append(key)
        return keys

    def find(self, words: Sequence[str], salt: str) -> int:
        """How many leading tokens are there. The last token of a prompt is always computed."""
        found = 0
        for key in self.keys(words[:-1], salt):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            found += self._block_tokens
        self.num_queried += len(words)
        self.num_hit += found
        return found

    def add(self, words: Sequence[str], salt: str) -> None:
        for key in self.keys(words, salt):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while self._max_blocks is not None and len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()
