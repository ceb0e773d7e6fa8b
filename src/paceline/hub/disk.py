"""Files that arrive: progress, digests, free space, and one pull at a time."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from paceline.errors import CapacityError, ModelError

CHUNK_BYTES = 1024 * 1024
_OTHER_FOLDER = "set PACELINE_HOME to another folder"


class Progress(Protocol):
    """Called as bytes arrive: what is being done, bytes done, bytes in all (None while not known)."""

    def __call__(self, stage: str, done: int, total: int | None, /) -> None: ...


def no_progress(stage: str, done: int, total: int | None, /) -> None:
    """Say nothing."""


def file_sha256(path: Path, *, progress: Progress = no_progress) -> str:
    """Hexadecimal digest of a file's content."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(f"checking {path.name.removesuffix('.part')}", done, total)
    return digest.hexdigest()


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise CapacityError when `num_bytes` more do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise _full(folder, f"{free / 1e6:.0f} MB free", f"{num_bytes / 1e6:.0f} MB")


@contextmanager
def room_on(folder: Path) -> Iterator[None]:
    """Turn a full disk, a quota or a read-only folder into an error with a fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(folder, str(error.strerror), "room for the model") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise ModelError(f"cannot write to {folder}", seen=error.strerror, fix=_OTHER_FOLDER) from error
        raise


def _full(folder: Path, seen: str, expected: str) -> CapacityError:
    return CapacityError(
        f"no room in {folder}", seen=seen, expected=expected, fix=f"free some space, or {_OTHER_FOLDER}"
    )


@contextmanager
def one_at_a_time(lock_path: Path, progress: Progress = no_progress) -> Iterator[None]:
    """Hold a lock file while pulling; a second process waits and says so. The system frees it when a process dies."""
    import filelock  # only pulls need it

    with room_on(lock_path.parent):
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(lock_path)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress("waiting for another pull", 0, None)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
