"""The files of one model on disk: which kind they are and which hold weights. Looks, never downloads.

Weights come from safetensors or GGUF files alone. Pickled checkpoints (.bin, .pt, .pth) can run code when they are
read, so they are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.errors import ModelError, UnsupportedError

INDEX_NAME = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model as it lies on disk.

    `dummy` has no weights: its `path` still gives the configuration (a folder with config.json, or a .gguf file).
    """

    kind: Literal["folder", "gguf", "dummy"]
    path: Path  # the folder, or the .gguf file
    name: str  # what the user called it
    files: tuple[Path, ...] = ()  # files that hold weights, in loading order; none when dummy

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError when it cannot be read or is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"cannot read {path}", seen=error.strerror, fix="check the path and its permissions"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path} is no valid JSON", seen=str(error), fix="download it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object", seen=type(value).__name__, fix="download it again")
    return value


def inspect(path: Path, name: str, *, weights: bool = True) -> ModelFiles:
    """Find out what lies at a local path. With weights=False only the configuration must be there (kind dummy).

    Raises ModelError when nothing usable is there, UnsupportedError when the weights are pickled.
    """
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(
                f"{path} is no model",
                seen=path.name,
                expected="a .gguf file or a folder with config.json",
                fix=_file_fix(path),
            )
        return ModelFiles("gguf", path, name, (path,)) if weights else ModelFiles("dummy", path, name)
    if not path.is_dir():
        raise ModelError(
            f"there is no {path}", expected="a .gguf file or a folder with config.json", fix="check the path"
        )
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return inspect(ggufs[0], name, weights=weights)
        raise ModelError(
            f"folder {path} holds no model",
            seen=_listing(path),
            expected="config.json next to .safetensors files, or one .gguf file",
            fix="give the path of one .gguf file" if ggufs else "give the folder that holds config.json",
        )
    if not weights:
        return ModelFiles("dummy", path, name)
    return ModelFiles("folder", path, name, tuple(_weight_files(path)))


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(_is_plain_name(shard) for shard in weight_map.values()):
            raise ModelError(
                f"{index} has no usable weight_map", expected="tensor name to file name", fix="download it again"
            )
        shards = sorted(dict.fromkeys(weight_map.values()))
        if missing := [shard for shard in shards if not (folder / shard).is_file()]:
            raise ModelError(
                f"folder {folder} lacks {len(missing)} of {len(shards)} weight files",
                seen=f"no {missing[0]}",
                expected=f"what {INDEX_NAME} lists",
                fix="download the missing files",
            )
        return [folder / shard for shard in shards]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    found = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith(("adapter_", "consolidated")))
    if found:
        return found
    pickled = sorted(p.name for pattern in PICKLED for p in folder.glob(pattern))
    if pickled:
        raise UnsupportedError(
            f"the weights in {folder} are pickled, which can run code when they are read",
            seen=", ".join(pickled[:3]),
            expected=".safetensors or .gguf",
            fix="take the safetensors files of this model, or convert it",
        )
    raise ModelError(
        f"folder {folder} has a config.json but no weights",
        seen=_listing(folder),
        expected=".safetensors files",
        fix="download them",
    )


def _is_plain_name(name: object) -> bool:
    # A shard named "../x" would read outside the folder.
    return isinstance(name, str) and name == Path(name).name and name not in ("", ".", "..")


def _file_fix(path: Path) -> str:
    return "give its folder" if path.suffix in (".safetensors", ".json") else "give the path of a .gguf file"


def _listing(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    return (
        ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "an empty folder"
    )
