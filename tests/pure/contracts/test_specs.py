import pytest

from paceline.contracts.kv import plan_kv_groups
from paceline.contracts.specs import LayerSpec, ModelSpec


def spec(layers: tuple[LayerSpec, ...], num_heads: int = 8, num_kv_heads: int = 2) -> ModelSpec:
    return ModelSpec(
        family="llama",
        name="test",
        revision="r",
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1024,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        layers=layers,
        max_model_len=4096,
    )


FULL, SLIDING = LayerSpec(), LayerSpec(attention="sliding", window=512)


@pytest.mark.parametrize(("num_kv_heads", "per_layer"), [(8, 2048), (2, 512), (1, 256)])
def test_kv_bytes_follow_the_kv_heads_of_mha_gqa_and_mqa(num_kv_heads: int, per_layer: int) -> None:
    model = spec((FULL,) * 4, num_kv_heads=num_kv_heads)
    assert model.kv_bytes_per_token_per_layer(2) == per_layer
    assert model.kv_bytes(100, 2) == 4 * 100 * per_layer


def test_a_sliding_layer_keeps_only_its_window() -> None:
    model = spec((SLIDING,) * 5 + (FULL,))
    per_layer = model.kv_bytes_per_token_per_layer(2)
    assert model.kv_bytes(2048, 2) == per_layer * (5 * 512 + 2048)
    assert model.kv_bytes(100, 2) == per_layer * 600


def test_layers_fold_into_groups_of_equal_bytes() -> None:
    model = spec((SLIDING,) * 5 + (FULL,) + (SLIDING,) * 5 + (FULL,) + (SLIDING,) * 5 + (FULL,))
    groups = plan_kv_groups(model, block_size=16, dtype_bytes=2)
    assert [g.kind for g in groups] == ["sliding"] * 5 + ["full"]
    assert {g.bytes_per_block for g in groups} == {3 * 16 * model.kv_bytes_per_token_per_layer(2)}
    assert sorted(i for g in groups for i in g.layers) == list(range(18))


def test_one_kind_of_layer_is_one_group() -> None:
    (group,) = plan_kv_groups(spec((FULL,) * 30), block_size=16, dtype_bytes=4)
    assert group.layers == tuple(range(30))
    assert group.max_blocks(100, chunk=2048) == 7


def test_a_sliding_group_is_bounded_by_window_and_chunk() -> None:
    (group,) = plan_kv_groups(spec((SLIDING,) * 2), block_size=16, dtype_bytes=2)
    assert group.max_blocks(100_000, chunk=64) == (512 + 64) // 16 + 1
    assert group.first_visible_block(511) == 0
    assert group.first_visible_block(527) == 1
