"""GGUF reading, against files of the `gguf` package's writer, and against files that are broken in every way."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.pure.hub.gguf_maker import gguf_bytes, model_bytes

from paceline.errors import ModelError, PacelineError, UnsupportedError
from paceline.hub.ggml_types import FILE_TYPES, GGML_TYPES
from paceline.hub.gguf_file import GGUFFile


def save(folder: Path, content: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_file_of_the_reference_writer_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ref.gguf"
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["a", "", "ünïcode", "<|x|>", "▁long " * 9]
    writer.add_token_list(tokens)
    writer.add_token_types([1, 2, 3, 4, 6])
    writer.add_token_scores([0.0, -1.5, 2.0, 3.0, -0.25])
    writer.add_chat_template("{% for m in messages %}é{% endfor %}")
    writer.add_uint64("x.big", 2**63 + 1)
    writer.add_int32("x.negative", -7)
    writer.add_float64("x.double", 0.1)
    writer.add_bool("x.flag", True)
    writer.add_array("x.flags", [True, False, True])
    one, two = rng.standard_normal((6, 64), dtype=np.float32), rng.standard_normal(5, dtype=np.float32)
    packed = gguf.quants.quantize(one, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("one.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("two.weight", two)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["tokenizer.ggml.tokens"] == tokens
    assert file.metadata["tokenizer.ggml.token_type"].tolist() == [1, 2, 3, 4, 6]
    assert file.metadata["tokenizer.ggml.scores"].tolist() == [0.0, -1.5, 2.0, 3.0, -0.25]
    assert file.metadata["tokenizer.chat_template"] == "{% for m in messages %}é{% endfor %}"
    assert file.metadata["x.big"] == 2**63 + 1
    assert file.metadata["x.negative"] == -7
    assert file.metadata["x.double"] == 0.1
    assert file.metadata["x.flag"] is True
    assert file.metadata["x.flags"].tolist() == [True, False, True]
    assert "x.none" not in file.metadata
    assert file.metadata.get("x.none", 5) == 5
    assert {name: (i.shape, i.type.name) for name, i in file.tensors.items()} == {
        "one.weight": ((6, 64), "Q8_0"),
        "two.weight": ((5,), "F32"),
    }
    assert file.raw(file.tensors["one.weight"]).tobytes() == packed.tobytes()
    assert file.raw(file.tensors["two.weight"]).view("<f4").tolist() == two.tolist()


def test_the_type_table_is_that_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for number, mine in GGML_TYPES.items():
        assert theirs[number] == mine[:3]
        raw = np.zeros((1, mine.block_bytes), dtype=np.uint8)
        try:
            gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number))
            can = True
        except NotImplementedError:
            can = False
        assert can is mine.readable, mine.name
    names = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    assert {number: names[number] for number in FILE_TYPES} == FILE_TYPES


def test_index_of_finds_whole_strings_only(tmp_path: Path) -> None:
    # The bytes of "ab" with its length also lie inside the first string.
    inside = b"x" + struct.pack("<Q", 2) + b"ab"
    content = gguf_bytes({"t": [inside, "b", "ab", "ab"], "n": [1, 2]}, {})
    file = GGUFFile(save(tmp_path, content))
    assert file.metadata.index_of("t", "ab") == 2
    assert file.metadata.index_of("t", "b") == 1
    assert file.metadata.index_of("t", "a") is None
    assert file.metadata.index_of("n", "a") is None


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = model_bytes()
    GGUFFile(save(tmp_path, whole))
    for size in range(0, len(whole), 13):
        with pytest.raises(ModelError) as caught:
            GGUFFile(save(tmp_path, whole[:size]))
        assert caught.value.fix, size


def test_a_cut_in_the_data_names_the_tensor_and_the_bytes(tmp_path: Path) -> None:
    whole = model_bytes()
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_down\.weight.*lies outside") as caught:
        GGUFFile(save(tmp_path, whole[:-1]))
    assert caught.value.seen == f"a file of {len(whole) - 1} bytes"
    assert f"{len(whole)} bytes at least" in caught.value.expected
    assert "download it again" in caught.value.fix


def test_flipped_bytes_never_raise_anything_but_our_errors(tmp_path: Path) -> None:
    whole, rng = model_bytes(), np.random.default_rng(7)
    data_start = GGUFFile(save(tmp_path, whole)).data_start
    refused = 0
    for _ in range(500):
        changed = bytearray(whole)
        for at in rng.integers(0, data_start, size=rng.integers(1, 4)):
            changed[at] = rng.integers(0, 256)
        try:
            file = GGUFFile(save(tmp_path, bytes(changed)))
            for key in file.metadata:
                file.metadata[key]
            for info in file.tensors.values():
                file.raw(info)
        except PacelineError:
            refused += 1
    assert 100 < refused < 500


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", ModelError, "no GGUF"),
        (b"PK\3\4" + bytes(100), ModelError, "no GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), UnsupportedError, "version"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedError, "big-endian"),
        (gguf_bytes({"split.count": 3}, {}), UnsupportedError, "split model"),
        (gguf_bytes({"a": 1}, {"w": (77, (4,), bytes(16))}), UnsupportedError, "'w'"),
        (gguf_bytes({"a": 1}, {"w": ("Q4_0", (2, 20), bytes(99))}), ModelError, "'w'"),
        (gguf_bytes({"a": 1}, {"w": ("F32", (0,), b"")}), ModelError, "'w'"),
        (gguf_bytes({"general.alignment": 0}, {"w": ("F32", (1,), bytes(4))}), ModelError, "alignment"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), ModelError, "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), ModelError, "metadata"),
    ],
)
def test_what_is_no_readable_file_is_named(
    tmp_path: Path, content: bytes, error: type[PacelineError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        GGUFFile(save(tmp_path, content))
    assert caught.value.fix


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        GGUFFile(tmp_path / "nothing.gguf")


def test_text_that_is_not_utf8_is_named_when_read(tmp_path: Path) -> None:
    file = GGUFFile(save(tmp_path, gguf_bytes({"name": b"\xff\xfe", "many": [b"ok", b"\xff"]}, {})))
    for key in ("name", "many"):
        with pytest.raises(ModelError, match=key):
            file.metadata[key]


def test_tensor_types_without_numbers_are_refused_by_name(tmp_path: Path) -> None:
    file = GGUFFile(save(tmp_path, gguf_bytes({"a": 1}, {"w": ("Q8_K", (1, 256), bytes(292))})))
    with pytest.raises(UnsupportedError, match="'w'") as caught:
        file.check_types()
    assert caught.value.seen == "Q8_K"
    assert "Q4_K" in caught.value.expected


@pytest.mark.parametrize("key", ["split.count", "general.alignment"])
@pytest.mark.parametrize("item", ["three", [1, 2], 2.5, True, ["x"]])
def test_a_header_value_of_the_wrong_type_is_named(tmp_path: Path, key: str, item: object) -> None:
    with pytest.raises(ModelError, match=key) as caught:
        GGUFFile(save(tmp_path, gguf_bytes({key: item}, {})))
    assert caught.value.seen
    assert caught.value.expected == "an integer"
    assert caught.value.fix
