"""Which features go together: what this version has passes, what it has not is refused by name with a way out."""

import pytest
from tests.pure.config.specs import GEMMA_270M, SMOLLM2

from paceline.config import check_features, feature_matrix, features_of, load_config, matrix_rows
from paceline.config.features import FEATURES
from paceline.contracts.specs import LayerSpec
from paceline.errors import UnsupportedError


def check(spec=SMOLLM2, dtype="float32", device="cpu", **flags):
    check_features(load_config(None, flags), spec, device=device, dtype=dtype)


@pytest.mark.parametrize("profile", ["interactive", "batch", "long-context"])
@pytest.mark.parametrize("spec", [SMOLLM2, GEMMA_270M], ids=["smollm2", "gemma3"])
def test_defaults_of_every_profile_go_together(profile, spec):
    check(spec, profile=profile)


@pytest.mark.parametrize("flags", [{"batching": "static"}, {"enable_prefix_caching": False}, {"numerics": "reference"}])
def test_what_this_version_has_is_accepted(flags):
    check(**flags)


def test_preemption_by_offload_is_refused_and_recompute_offered():
    with pytest.raises(UnsupportedError, match="not in this version") as caught:
        check(preemption="offload")
    assert "preemption:recompute" in caught.value.fix


def test_the_compute_type_may_be_named_as_the_kv_type():
    check(kv_cache_dtype="float32")


def test_int8_is_a_kv_type_of_any_compute_type():
    for dtype in ("float32", "bfloat16"):
        check(kv_cache_dtype="int8", dtype=dtype)
    config = load_config(None, {"kv_cache_dtype": "int8"})
    assert "kv_dtype:int8" in features_of(config, SMOLLM2, device="cpu", dtype="float32")
    assert (config.cache.kv_dtype("float32"), load_config().cache.kv_dtype("bfloat16")) == ("int8", "bfloat16")


@pytest.mark.parametrize("dtype", ["fp8", "int4", "bfloat16"])
def test_another_kv_type_is_refused_by_name(dtype):
    with pytest.raises(UnsupportedError, match=f"kv_dtype:{dtype}") as caught:
        check(kv_cache_dtype=dtype)
    assert "kv_dtype:compute" in caught.value.fix


def test_float16_is_refused_for_a_family_that_overflows_it():
    with pytest.raises(UnsupportedError, match="float16") as caught:
        check(GEMMA_270M, dtype="float16")
    assert "dtype:bfloat16" in caught.value.fix
    check(SMOLLM2, dtype="float16")


def test_nearest_valid_set_is_valid_whatever_is_switched_on():
    matrix = feature_matrix()
    for feature in FEATURES:
        active = [*features_of(load_config(), SMOLLM2, device="cpu", dtype="float32"), feature.name]
        assert not matrix.problems(matrix.nearest_valid(active)), feature.name


def test_layers_of_two_kinds_count_as_kv_groups():
    config = load_config()
    assert "kv_groups" in features_of(config, GEMMA_270M, device="cpu", dtype="float32")
    assert "kv_groups" not in features_of(config, SMOLLM2, device="cpu", dtype="float32")
    assert LayerSpec() in SMOLLM2.layers


def test_matrix_lists_every_feature_once_and_says_why_not():
    rows = matrix_rows()
    assert sorted(r.feature for r in rows) == sorted(f.name for f in FEATURES)
    for row in rows:
        available = next(f.available for f in FEATURES if f.name == row.feature)
        assert (row.status == "yes") == available
        assert available or "not in this version" in row.status


def test_every_named_alternative_and_need_is_a_known_feature():
    known = {f.name for f in FEATURES}
    for feature in FEATURES:
        assert feature.instead is None or feature.instead in known, feature.name
        assert {other for other, _ in feature.needs} <= known, feature.name
