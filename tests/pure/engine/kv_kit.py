"""A KV manager and short words for what a scheduler does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.request import Request, TokenPrompt
from paceline.engine.kv_manager import KVManager, Quote, SequenceKeys, SequenceKV

SIZE = 4


class Kit:
    """The manager is `kv`; blocks are of `SIZE` tokens."""

    def __init__(self, num_blocks: int = 32, windows: Sequence[int | None] = (None,), **options: Any) -> None:
        groups = tuple(
            KVGroupSpec(
                kind="full" if window is None else "sliding",
                layers=(index,),
                block_size=SIZE,
                bytes_per_block=64,
                window=window,
            )
            for index, window in enumerate(windows)
        )
        self.layout = KVLayout(groups=groups, num_blocks=num_blocks)
        self.kv = KVManager(self.layout, **{"max_chunk_tokens": 8, **options})
        self.next_id = 0

    def keys(self, ids: Sequence[int], **fields: Any) -> SequenceKeys:
        prompt = TokenPrompt(ids=np.asarray(ids, dtype=np.int32))
        return self.kv.keys_for(Request(request_id=0, prompt=prompt, **fields))

    def quote(self, keys: SequenceKeys, known: int, **options: Any) -> Quote:
        self.next_id += 1
        return self.kv.quote(self.next_id, keys, known, **{"max_hit_tokens": known - 1, **options})

    def admit(self, keys: SequenceKeys, known: int, **options: Any) -> SequenceKV:
        state = self.kv.reserve(self.quote(keys, known, **options))
        assert state is not None
        self.kv.check()
        return state

    def compute(self, state: SequenceKV, keys: SequenceKeys, end: int) -> None:
        """In chunks, each applied before the next."""
        while state.num_computed < end:
            target = min(end, state.num_computed + self.kv.max_chunk_tokens)
            assert self.kv.grow(state, target) is not None
            self.kv.commit(state, keys, target)
            self.kv.check()

    def run(self, ids: Sequence[int], **fields: Any) -> SequenceKV:
        keys = self.keys(ids, **fields)
        state = self.admit(keys, len(ids))
        self.compute(state, keys, len(ids))
        return state

    def cache(self, ids: Sequence[int], **fields: Any) -> None:
        self.kv.release(self.run(ids, **fields))
        self.kv.check()
