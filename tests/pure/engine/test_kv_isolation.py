"""What may hit what: domains, tenants, traces, media."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.pure.engine.kv_kit import SIZE, Kit

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.request import MediaSpan, Request, TokenPrompt, TracePrompt
from paceline.engine.kv_manager import KVManager, SequenceKeys


@pytest.mark.parametrize(
    "fields", [{"cache_salt": b"x"}, {"adapter_digest": b"x"}, {"tenant": "x"}, {"cache_salt": b"x", "tenant": "x"}]
)
def test_nothing_is_hit_across_domains(fields: dict[str, Any]):
    kit = Kit()
    kit.cache(range(16))
    quote = kit.quote(kit.keys(range(16), **fields), 16)
    assert (quote.hit_tokens, quote.miss_reason) == (0, "other_salt_or_adapter")
    kit.cache(range(16), **fields)
    assert kit.quote(kit.keys(range(16), **fields), 16).hit_tokens == 12


def test_nothing_is_keyed_alike_across_model_revisions_and_kv_dtypes():
    def first_key(revision: str, dtype: str) -> bytes:
        group = KVGroupSpec(kind="full", layers=(0,), block_size=SIZE, bytes_per_block=64)
        layout = KVLayout(groups=(group,), num_blocks=4, dtype=dtype)
        kv = KVManager(layout, max_chunk_tokens=8, model_revision=revision)
        request = Request(request_id=0, prompt=TokenPrompt(ids=np.arange(4, dtype=np.int32)))
        return kv.keys_for(request).keys[0]

    keys = {first_key(revision, dtype) for revision in ("a", "b") for dtype in ("float32", "int8")}
    assert len(keys) == 4


def test_tenants_share_only_when_told_to():
    kit = Kit(share_tenants=True)
    kit.cache(range(16), tenant="a")
    assert kit.quote(kit.keys(range(16), tenant="b"), 16).hit_tokens == 12
    assert kit.quote(kit.keys(range(16), tenant="b", cache_salt=b"s"), 16).hit_tokens == 0


def test_traces_hit_by_hash_and_never_by_their_unknown_tail():
    kit = Kit()

    def keys(*hashes: int) -> SequenceKeys:
        prompt = TracePrompt(num_tokens=24, block_hashes=hashes, hash_block_size=8)
        return kit.kv.keys_for(Request(request_id=0, prompt=prompt))

    first = keys(1, 2)
    state = kit.admit(first, 24)
    kit.compute(state, first, 24)
    kit.kv.release(state)
    assert kit.quote(keys(1, 2), 24).hit_tokens == 16
    assert kit.quote(keys(1, 3), 24).hit_tokens == 8
    assert kit.quote(keys(1, 2, 3), 24).hit_tokens == 16


def test_media_with_equal_placeholders_is_told_apart_by_digest():
    kit = Kit()

    def keys(digest: bytes) -> SequenceKeys:
        spans = (MediaSpan(start=5, length=3, digest=digest),)
        prompt = TokenPrompt(ids=np.zeros(17, dtype=np.int32), spans=spans)
        return kit.kv.keys_for(Request(request_id=0, prompt=prompt))

    cat = keys(b"cat")
    state = kit.admit(cat, 17)
    kit.compute(state, cat, 17)
    assert kit.quote(keys(b"cat"), 17).hit_tokens == 16
    assert kit.quote(keys(b"dog"), 17).hit_tokens == 4
