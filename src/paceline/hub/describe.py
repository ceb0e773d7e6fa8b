"""What a model is: its `ModelSpec`, read from its files without loading weights."""

from __future__ import annotations

from pathlib import Path

from paceline.contracts.specs import ModelSpec
from paceline.errors import ModelError
from paceline.hub import revision
from paceline.hub.config_json import spec_from_config
from paceline.hub.files import ModelFiles, read_json
from paceline.hub.gguf_file import GGUFFile
from paceline.hub.gguf_spec import spec_from_gguf
from paceline.hub.safetensors_file import DTYPES, read_header


def describe(files: ModelFiles) -> ModelSpec:
    """The architecture with its sizes, stop tokens and the digest of its content.

    Every tensor of the weight files is checked against the size of its file. Raises UnsupportedError for an
    architecture, feature or tensor type that is not built, ModelError for files that are cut off, corrupt or missing.
    """
    if files.path.is_dir():
        return _describe_folder(files)
    return _describe_gguf(files)


def _describe_gguf(files: ModelFiles) -> ModelSpec:
    file = GGUFFile(files.path)
    regions = [
        revision.Region(f"{info.name} {info.type.name} {info.shape}", info.offset, info.num_bytes)
        for info in file.tensors.values()
    ]
    # Everything before the data is configuration: sizes and the vocabulary.
    with files.path.open("rb") as stream:
        head = stream.read(file.data_start)
    weights: list[tuple[Path, list[revision.Region]]] = [(files.path, regions)] if files.files else []
    return spec_from_gguf(file, name=files.name, revision=_named(revision.digest(head, weights), files))


def _describe_folder(files: ModelFiles) -> ModelSpec:
    path = files.path / "config.json"
    config = read_json(path)
    generation_path = files.path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else None
    weights: list[tuple[Path, list[revision.Region]]] = []
    bytes_by_dtype: dict[str, int] = {}
    owner: dict[str, Path] = {}
    for shard in files.files:
        regions = []
        for tensor in read_header(shard):
            if tensor.name in owner:
                raise ModelError(
                    f"tensor {tensor.name!r} is in {owner[tensor.name].name} and in {shard.name}",
                    fix="keep the weight files of one model in a folder",
                )
            owner[tensor.name] = shard
            bytes_by_dtype[tensor.dtype] = bytes_by_dtype.get(tensor.dtype, 0) + tensor.num_bytes
            regions.append(
                revision.Region(f"{tensor.name} {tensor.dtype} {tensor.shape}", tensor.offset, tensor.num_bytes)
            )
        weights.append((shard, regions))
    most = max(bytes_by_dtype, key=lambda dtype: bytes_by_dtype[dtype], default=None)
    return spec_from_config(
        config,
        name=files.name,
        where=str(path),
        revision=_named(revision.digest(path.read_bytes(), weights), files),
        generation=generation,
        weight_dtype=DTYPES[most][0] if most is not None else "",
        weight_bytes=sum(bytes_by_dtype.values()),
    )


def _named(digest: str, files: ModelFiles) -> str:
    return f"dummy-{digest}" if files.kind == "dummy" else digest
