"""`activation_dtype=bfloat16` through the engine: what it reaches, what it takes, where it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cpu.quant.test_gguf_model import tokenizer, write_llama
from tests.cpu.quant.test_int8_model import check_texts_are_their_own, config
from tests.fakes.model_folder import write_model

from paceline.assemble.core import build_core
from paceline.assemble.plan import kept_bytes
from paceline.assemble.weights import find_weight_method
from paceline.errors import UnsupportedError
from paceline.hub.files import inspect
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.dispatch import choose

__all__ = ["tokenizer"]  # a fixture
lacking = native.why_not() or ("" if native.multiplies_bf16() else "this CPU has no products of bfloat16")
needs_products = pytest.mark.skipif(bool(lacking), reason=lacking)


@needs_products
def test_a_text_does_not_depend_on_the_texts_beside_it(tmp_path: Path, tokenizer: str) -> None:
    check_texts_are_their_own(tmp_path / "m.gguf", tokenizer, "bfloat16")


@needs_products
@pytest.mark.parametrize(("stored", "tied"), [("Q4_1", True), ("F16", False)])
def test_weights_take_what_a_plan_says(tmp_path: Path, tokenizer: str, stored: str, tied: bool) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path, stored, tied=tied)
    asked = config(path, tokenizer, activation_dtype="bfloat16")
    method = find_weight_method(asked, inspect(path, "m"), device="cpu", dtype="float32")
    assert method is not None
    core = build_core(asked)
    taken = core.memory.ledger.weights.predicted_bytes
    core.core.close()
    assert taken == kept_bytes(inspect(path, "m"), method)


@needs_products
def test_a_checkpoint_of_floats_is_reached_as_it_is(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    files = inspect(folder, "tiny")
    for quantization, expected in [("auto", (False, True)), ("none", (False, False)), ("int8", (True, True))]:
        asked = config(folder, str(folder), activation_dtype="bfloat16", quantization=quantization)
        method = find_weight_method(asked, files, device="cpu", dtype="float32")
        assert method is not None
        assert (method.name, (method.rounds, method.keeps)) == ("gguf-bf16", expected)


@needs_products
@pytest.mark.parametrize(
    ("options", "words"),
    [({"numerics": "reference"}, "numerics reference"), ({"dtype": "bfloat16"}, "dtype bfloat16")],
    ids=["reference", "bfloat16"],
)
def test_where_it_cannot_be_had_it_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    folder = write_model(tmp_path / "tiny")
    asked = config(folder, str(folder), activation_dtype="bfloat16", **options)
    with pytest.raises(UnsupportedError, match=words) as caught:
        build_core(asked)
    assert caught.value.fix
    assert "AVX-512 BF16 or AMX" in caught.value.expected


@needs_products
def test_a_level_below_has_no_kernel(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    asked = config(folder, str(folder), activation_dtype="bfloat16")
    names = {}
    try:
        for level in native.isa_levels():
            native.set_isa(level)
            names[level] = choose("gguf_bf16_linear", "cpu", torch.float32, "fast").name
            if names[level] == "none":
                with pytest.raises(UnsupportedError, match="no products of bfloat16"):
                    find_weight_method(asked, inspect(folder, "tiny"), device="cpu", dtype="float32")
    finally:
        native.set_isa(native.isa_levels()[-1])
    assert {names[level] for level in ("avx2", "avx512")} == {"none"}
    assert names.get("vnni512", "native-avx512bf16") == "native-avx512bf16"
    assert names.get("amx", "native-amx") == "native-amx"


def test_without_the_library_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "tiny")
    monkeypatch.setattr(native, "why_not", lambda: "there is no C++ compiler")
    asked = config(folder, str(folder), activation_dtype="bfloat16")
    with pytest.raises(UnsupportedError, match=r"there is no C\+\+ compiler"):
        find_weight_method(asked, inspect(folder, "tiny"), device="cpu", dtype="float32")
