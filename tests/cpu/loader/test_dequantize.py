"""Every block type against `gguf.quants`, called the plain way, on random bytes."""

import gguf
import numpy as np
import pytest
import torch

from paceline.hub.ggml_types import GGML_TYPES
from paceline.runtime.loader import dequantize as module
from paceline.runtime.loader.dequantize import dequantize

BLOCKS = [t for t in GGML_TYPES.values() if t.readable and t.block_size > 1]


def random_blocks(kind: str, rows: int, blocks_per_row: int) -> np.ndarray:
    """Valid blocks: quantised from noise where the package can, else random bytes (whose scales may be anything)."""
    t = next(t for t in GGML_TYPES.values() if t.name == kind)
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, size=(rows, blocks_per_row * t.block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", [t.name for t in BLOCKS])
@pytest.mark.parametrize("slab_rows", [1, 16])
def test_each_type_is_bit_equal_to_the_reference(kind: str, slab_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    t = next(t for t in BLOCKS if t.name == kind)
    monkeypatch.setattr(module, "_ROW_WEIGHTS", 1024)
    monkeypatch.setattr(module, "_SLAB_WEIGHTS", 1024 * slab_rows)
    monkeypatch.setattr(module, "_COPY_WEIGHTS", 700)
    rows, per_row = 37, 3 * 256 // t.block_size
    raw = random_blocks(kind, rows, per_row)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
        found = dequantize(raw.reshape(-1), kind, (rows, 768), None)
        narrow = dequantize(raw.reshape(-1), kind, (rows, 768), torch.bfloat16)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy().view(np.uint32), wanted.view(np.uint32))  # bits: NaNs too
    assert torch.equal(narrow.view(torch.int16), found.to(torch.bfloat16).view(torch.int16))


def test_a_tensor_smaller_than_a_row_and_one_larger_than_a_slab() -> None:
    weights = np.random.default_rng(6).standard_normal((70, 8192), dtype=np.float32)
    for part in (weights, weights[:1, :32]):
        packed = gguf.quants.quantize(np.ascontiguousarray(part), gguf.GGMLQuantizationType.Q8_0)
        found = dequantize(packed.reshape(-1), "Q8_0", part.shape, None)
        assert np.array_equal(found.numpy(), gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))
        assert np.abs(found.numpy() - part).max() < 0.05


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_types_keep_their_dtype_unless_told(kind: str, dtype: torch.dtype) -> None:
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    raw = values.view(torch.uint8).numpy().reshape(-1)
    assert torch.equal(dequantize(raw, kind, (5, 7), None), values)
    assert torch.equal(dequantize(raw, kind, (5, 7), torch.float32), values.float())
    own = dequantize(raw, kind, (5, 7), None)
    own.zero_()  # the tensor is the caller's, not a view of the file
    assert torch.equal(dequantize(raw, kind, (5, 7), None), values)
