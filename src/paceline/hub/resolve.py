"""From what a user calls a model to its files; and the list of what has been fetched.

A name is, in this order: `dummy:` and any other name (random weights), a short name of `aliases`, a path, a hub id with
an optional @revision. A folder of the same name as an alias is reached as ./name.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ModelError
from paceline.hub.aliases import ALIASES, alias_path, is_pulled, nearest
from paceline.hub.disk import Progress, no_progress, room_on
from paceline.hub.files import ModelFiles, inspect
from paceline.hub.hugging_face import HubAccess, hub_cache, is_hub_id, snapshot

DUMMY = "dummy:"


@dataclass(frozen=True, slots=True)
class Stored:
    """One fetched model."""

    name: str  # what to call it
    path: Path
    size_bytes: int


def resolve(
    name: str,
    cache_dir: Path,
    revision: str | None = None,
    download: bool = True,
    *,
    weights: bool = True,
    access: HubAccess | None = None,
    progress: Progress = no_progress,
) -> ModelFiles:
    """Find a model's files; fetch them when they are missing and `download` allows it.

    weights=False is content with the configuration (kind dummy). Raises ModelError when there is no such model, it
    cannot be fetched or is incomplete, UnsupportedError when its weights are of a kind that is not read.
    """
    if name.startswith(DUMMY):
        inner = resolve(
            name.removeprefix(DUMMY), cache_dir, revision, download, weights=False, access=access, progress=progress
        )
        return ModelFiles("dummy", inner.path, name)
    if name in ALIASES:
        alias = ALIASES[name]
        if not is_pulled(alias, cache_dir):
            if not download:
                raise ModelError(
                    f"{name} is not here yet",
                    seen=f"no {alias_path(alias, cache_dir)}",
                    fix=f"paceline models pull {name}",
                )
            from paceline.hub.fetch import pull  # HTTP is loaded only when something must be fetched

            pull(alias, cache_dir, progress=progress)
        return inspect(alias_path(alias, cache_dir), name, weights=weights)
    path = Path(name).expanduser()
    if name and path.exists():
        return inspect(path, name, weights=weights)
    hub_id, _, at = name.partition("@")
    if is_hub_id(hub_id) and not name.lower().endswith(".gguf") and not name.startswith("."):
        folder = snapshot(
            hub_id,
            cache_dir,
            revision=at or revision,
            download=download,
            weights=weights,
            access=access,
            progress=progress,
        )
        return inspect(folder, name, weights=weights)
    raise _unknown(name, path)


def _unknown(name: str, path: Path) -> ModelError:
    close = nearest(name)
    if "/" in name or "\\" in name or name.lower().endswith(".gguf"):
        return ModelError(
            f"there is no file or folder {path}",
            expected="a .gguf file or a folder with config.json",
            fix="check the path",
        )
    return ModelError(
        f"no model is called {name!r}",
        expected=f"one of {', '.join(ALIASES)}, a folder, a .gguf file, or a hub id (org/name)",
        fix=f"did you mean {close!r}?" if close else "see `paceline models list`",
    )


def stored(cache_dir: Path) -> list[Stored]:
    """Everything fetched, by name: short names first, then hub models."""
    found = [
        Stored(name, alias_path(alias, cache_dir), alias.size_bytes)
        for name, alias in ALIASES.items()
        if is_pulled(alias, cache_dir)
    ]
    hub = hub_cache(cache_dir)
    for folder in sorted(hub.glob("models--*")) if hub.is_dir() else ():
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
        found.append(Stored(folder.name.removeprefix("models--").replace("--", "/", 1), folder, size))
    return found


def remove(name: str, cache_dir: Path) -> Stored:
    """Delete a fetched model, unfinished downloads of it included. Raises ModelError when nothing is there."""
    found = next((s for s in stored(cache_dir) if s.name == name), None)
    if name in ALIASES:
        folder = alias_path(ALIASES[name], cache_dir).parent
    elif is_hub_id(name):
        folder = hub_cache(cache_dir) / f"models--{name.replace('/', '--')}"
    else:
        folder = None
    if folder is None or not folder.is_dir():
        here = ", ".join(s.name for s in stored(cache_dir)) or "nothing"
        raise ModelError(f"{name} is not here", seen=f"fetched: {here}", fix="see `paceline models list`")
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    with room_on(folder.parent):
        shutil.rmtree(folder)
    return found or Stored(name, folder, size)
