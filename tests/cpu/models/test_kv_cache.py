"""The paged cache: layers of a group have their own slots, groups share block ids, blocks copy whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from paceline.contracts.kv import KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import LayerSpec, ModelSpec
from paceline.runtime.kernels.reference.kv_int8 import from_records, to_records
from paceline.runtime.kernels.reference.kv_write import write_kv
from paceline.runtime.kv_cache import KVCache

SLIDING = LayerSpec(attention="sliding", window=4)
SPEC = ModelSpec(
    family="gemma3",
    name="x",
    revision="",
    vocab_size=1,
    hidden_size=1,
    intermediate_size=1,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    layers=(SLIDING, LayerSpec(), SLIDING, SLIDING),
    max_model_len=1,
)


def make() -> KVCache:
    layout = KVLayout(groups=plan_kv_groups(SPEC, 4, 4), num_blocks=5)
    return KVCache(layout, SPEC, torch.float32)


def test_storage_is_what_the_layout_says() -> None:
    cache = make()
    assert cache.layout.num_blocks == 5
    assert cache.storage.numel() == 8 * cache.layout.bytes_per_block  # a whole chunk
    key, value = cache.layer(0)
    assert key.shape == value.shape == (2, 1, 8, 4, 8)


def test_layers_of_groups_share_memory_and_layers_of_one_group_do_not() -> None:
    layout = KVLayout(groups=plan_kv_groups(SPEC, 4, 4), num_blocks=5)
    assert [group.layers for group in layout.groups] == [(0,), (2,), (3,), (1,)]
    cache = make()
    cache.layer(0)[0].fill_(1.0)
    assert torch.equal(cache.layer(1)[0], torch.ones(2, 1, 8, 4, 8))
    assert not cache.layer(0)[1].any()


def test_layer_cache_shapes_are_views_of_one_memory() -> None:
    layer = make().layer_cache(1)
    assert layer.group == 3
    layer.block(1)[1, 1, 1] = 7.0  # second V head, offset 1
    run = layer.run_of(np.array([3]), np.array([1]))
    assert (layer.runs[int(run[0])].view(4, 8)[1] == 7.0).all()
    assert int((layer.runs == 7.0).sum()) == 8


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not say what is resident")
def test_a_cache_takes_the_system_s_memory_as_blocks_are_used() -> None:
    """Whatever the size of pages, and though a block has a part for each layer and head."""
    spec = msgspec.structs.replace(SPEC, layers=(LayerSpec(),) * 32, num_kv_heads=2, head_dim=32)
    layout = KVLayout(groups=plan_kv_groups(spec, 16, 4), num_blocks=1000)
    cache = KVCache(layout, spec, torch.float32)
    assert layout.total_bytes > 250 << 20
    for layer in range(32):
        write_kv(torch.ones(32, 4, 32), cache.layer_cache(layer), torch.arange(16, 48))
    used = resident_bytes(cache.storage.data_ptr())
    assert 2 * layout.bytes_per_block <= used <= 8 * layout.bytes_per_block + (4 << 20)


def resident_bytes(address: int) -> int:
    """Of the mapping that holds an address."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.partition(" ")[0].count("-") == 1:
            begin, end = (int(part, 16) for part in line.partition(" ")[0].split("-"))
            found = begin <= address < end
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")


def test_copy_reads_all_sources_before_it_writes() -> None:
    cache = make()
    for block in range(1, 6):
        for layer in range(4):
            cache.layer_cache(layer).block(block).fill_(block)
    cache.copy_blocks([1, 2], [2, 3])
    assert [float(cache.layer_cache(2).block(b)[1, 1, 3, 7]) for b in range(6)] == [0.0, 1.0, 1.0, 2.0, 4.0, 5.0]


def test_a_cache_of_int8_is_what_its_layout_says_and_scales_move_with_blocks() -> None:
    held = kv_format("int8", SPEC)
    groups = plan_kv_groups(SPEC, 4, held.element_bytes, held.scale_bytes)
    assert groups[0].bytes_per_block == 4 * 2 * 2 * (8 + 4)  # tokens, K and V, heads, codes and their scale
    cache = KVCache(KVLayout(groups=groups, num_blocks=5, dtype="int8"), SPEC, torch.int8)
    assert cache.storage.numel() == 8 * cache.layout.bytes_per_block
    layer = cache.layer_cache(1)
    assert layer.has_scales
    assert layer.kv.shape == (2, 2, 1, 8, 4, 12)
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    write_kv(x, layer, torch.tensor([4, 6, 9]))
    cache.copy_blocks([1], [5])
    assert torch.equal(layer.block(5), layer.block(1))
    assert torch.equal(layer.block(5)[:, :, 2].flatten(0, 1), to_records(x[1]))
    assert torch.equal(from_records(layer.block(2)[:, :, 1].flatten(0, 1)), from_records(to_records(x[2])))
    cache.poison([5])
    assert from_records(layer.block(5)).isnan().all()
    assert not any(from_records(layer.block(b)).isnan().any() for b in range(5))


def test_poison_reaches_every_layer_and_no_other_block() -> None:
    cache = make()
    cache.poison([2, 4])
    for layer in map(cache.layer_cache, range(4)):
        assert [bool(layer.block(b).isnan().all()) for b in range(6)] == [False, False, True, False, True, False]
        assert not any(layer.block(b).isnan().any() for b in (0, 1, 3, 5))
