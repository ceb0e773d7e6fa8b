"""What lies at a path: model folders, GGUF files, what people give by mistake; and headers and digests."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.pure.hub.gguf_maker import model_bytes, tensor
from tests.pure.hub.safetensors_maker import safetensors_bytes

from paceline.errors import ModelError, PacelineError, UnsupportedError
from paceline.hub import describe
from paceline.hub.files import INDEX_NAME, inspect
from paceline.hub.safetensors_file import read_header

CONFIG = {
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
ONE = {"a.weight": ("BF16", (4, 8), bytes(range(64))), "b.weight": ("F32", (2,), bytes(8))}
TWO = {"c.weight": ("BF16", (300, 8), bytes(4800))}


def folder_with(folder: Path, **files: bytes | dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        raw = json.dumps(content).encode() if isinstance(content, dict) else content
        (folder / name.replace("__", ".").replace("_", "-")).write_bytes(raw)
    return folder


def sharded(folder: Path) -> Path:
    folder_with(
        folder,
        config__json=CONFIG,
        model_2__safetensors=safetensors_bytes(TWO),
        model_1__safetensors=safetensors_bytes(ONE),
    )
    shards = {"a.weight": "model-1.safetensors", "b.weight": "model-1.safetensors", "c.weight": "model-2.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": shards}))
    return folder


def test_a_sharded_folder_lists_its_files_in_order_and_its_spec_adds_them_up(tmp_path: Path) -> None:
    files = inspect(sharded(tmp_path / "m"), "m")
    assert (files.kind, [f.name for f in files.files]) == ("folder", ["model-1.safetensors", "model-2.safetensors"])
    spec = describe(files)
    assert (spec.weight_dtype, spec.weight_bytes, spec.name) == ("bfloat16", 64 + 8 + 4800, "m")
    assert spec.eos_token_ids == (2,)
    (tmp_path / "m/generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert describe(files).eos_token_ids == (7, 2)


def test_a_single_file_and_unlisted_files_are_found(tmp_path: Path) -> None:
    single = folder_with(tmp_path / "1", config__json=CONFIG, model__safetensors=safetensors_bytes(ONE))
    assert [f.name for f in inspect(single, "m").files] == ["model.safetensors"]
    several = folder_with(
        tmp_path / "2",
        config__json=CONFIG,
        x__safetensors=safetensors_bytes(ONE),
        y__safetensors=safetensors_bytes(TWO),
        consolidated__safetensors=safetensors_bytes(ONE),
    )
    assert [f.name for f in inspect(several, "m").files] == ["x.safetensors", "y.safetensors"]


def test_a_gguf_file_or_a_folder_with_one(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "g", tiny__gguf=model_bytes())
    assert inspect(folder, "m") == inspect(folder / "tiny.gguf", "m")
    spec = describe(inspect(folder, "m"))
    assert (spec.family, spec.name, spec.weight_dtype) == ("llama", "m", "gguf:F32")


def test_without_weights_the_configuration_is_enough(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "c", config__json=CONFIG)
    files = inspect(folder, "dummy:c", weights=False)
    assert (files.kind, files.files, files.size_bytes) == ("dummy", (), 0)
    assert describe(files).revision.startswith("dummy-")
    gguf = folder_with(tmp_path / "g", tiny__gguf=model_bytes()) / "tiny.gguf"
    assert describe(inspect(gguf, "d", weights=False)).revision.startswith("dummy-")


def broken_folders() -> list[Any]:
    index = {"weight_map": {"a": "model-9.safetensors"}}
    escape = {"weight_map": {"a": "../secret.safetensors"}}
    cases: list[tuple[str, dict[str, Any], type[PacelineError], str]] = [
        ("empty", {}, ModelError, "an empty folder"),
        ("only tokenizer", {"tokenizer__json": {}}, ModelError, "config.json"),
        ("two ggufs", {"a__gguf": b"", "b__gguf": b""}, ModelError, "path of one .gguf"),
        ("no weights", {"config__json": CONFIG}, ModelError, "no weights"),
        ("pickled", {"config__json": CONFIG, "pytorch_model__bin": b""}, UnsupportedError, "pickled"),
        ("shard missing", {"config__json": CONFIG, INDEX_NAME: index}, ModelError, "no model-9.safetensors"),
        ("shard outside", {"config__json": CONFIG, INDEX_NAME: escape}, ModelError, "weight_map"),
        ("index broken", {"config__json": CONFIG, INDEX_NAME: b"{"}, ModelError, "no valid JSON"),
        ("index a list", {"config__json": CONFIG, INDEX_NAME: b"[]"}, ModelError, "no JSON object"),
    ]
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


@pytest.mark.parametrize(("files", "error", "words"), broken_folders())
def test_a_wrong_folder_is_explained(
    tmp_path: Path, files: dict[str, Any], error: type[PacelineError], words: str
) -> None:
    with pytest.raises(error) as caught:
        inspect(folder_with(tmp_path / "m", **files), "m")
    assert words in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(("name", "fix"), [("model.safetensors", "its folder"), ("weights.bin", ".gguf file")])
def test_a_file_of_another_kind_is_explained(tmp_path: Path, name: str, fix: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        inspect(tmp_path / name, name)
    assert fix in caught.value.fix


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path / "m",
        config__json=CONFIG,
        x__safetensors=safetensors_bytes(ONE),
        y__safetensors=safetensors_bytes(ONE),
    )
    with pytest.raises(ModelError, match=r"a\.weight"):
        describe(inspect(folder, "m"))


def test_safetensors_headers_give_place_and_shape(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(ONE))
    a, b = read_header(path)
    assert (a.name, a.dtype, a.shape, a.num_bytes) == ("a.weight", "BF16", (4, 8), 64)
    assert path.read_bytes()[a.offset : a.offset + 64] == bytes(range(64))
    assert (b.offset, b.num_bytes) == (a.offset + 64, 8)


def test_a_safetensors_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole, path = safetensors_bytes(ONE), tmp_path / "m.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            read_header(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=r"'b\.weight'.*outside") as caught:
        read_header(path)
    assert f"{len(whole)} bytes" in caught.value.expected


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"dtype": "F8_E4M3"}, UnsupportedError),
        ({"shape": [3, 3]}, ModelError),
        ({"shape": [-2, -4]}, ModelError),
        ({"data_offsets": [8, 0]}, ModelError),
        ({"data_offsets": "x"}, ModelError),
        ({"shape": None}, ModelError),
    ],
)
def test_bad_entries_name_their_tensor(tmp_path: Path, changes: dict[str, Any], error: type[PacelineError]) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes({"w": ("F32", (2,), bytes(8))}, **changes))
    with pytest.raises(error, match="'w'"):
        read_header(path)


def test_the_revision_follows_content_not_place_or_time(tmp_path: Path) -> None:
    first = sharded(tmp_path / "a")
    again = Path(shutil.copytree(first, tmp_path / "b" / "other-name"))
    revision = describe(inspect(first, "a")).revision
    assert describe(inspect(again, "b")).revision == revision
    assert len(revision) == 32
    seen = {revision}
    for at in (-1, -2400, -4800):  # last, middle and first bytes of the big tensor
        shard = again / "model-2.safetensors"
        changed = bytearray((first / "model-2.safetensors").read_bytes())
        changed[at] ^= 1
        shard.write_bytes(changed)
        seen.add(describe(inspect(again, "b")).revision)
    (again / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 5.0}))
    seen.add(describe(inspect(again, "b")).revision)
    assert len(seen) == 5


def test_the_revision_of_a_gguf_file_follows_weights_and_vocabulary(tmp_path: Path) -> None:
    import numpy as np

    def revision(content: bytes) -> str:
        (tmp_path / "m.gguf").write_bytes(content)
        return describe(inspect(tmp_path / "m.gguf", "m")).revision

    other = {"output_norm.weight": tensor(np.random.default_rng(9), 8)}
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "AB", "<|im_end|>", "é"]
    assert revision(model_bytes()) == revision(model_bytes())
    assert len({revision(model_bytes(**c)) for c in ({}, {"tensors": other}, {"tokenizer__ggml__tokens": tokens})}) == 3
