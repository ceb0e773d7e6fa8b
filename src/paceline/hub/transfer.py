"""Getting bytes to disk: resumable downloads, digests, free space and one pull at a time.

An unfinished file is kept as `<name>.part` and continued from its end; it gets its real name only when it is whole and
its digest is right, so a file with its real name can be trusted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import certifi
import filelock
import httpx

from paceline.errors import CapacityError, ModelError

CHUNK_BYTES = 1024 * 1024
ATTEMPTS = 5


class Progress(Protocol):
    """Called as bytes arrive: what is being done, bytes done, bytes in all (None while not known)."""

    def __call__(self, stage: str, done: int, total: int | None, /) -> None: ...


def no_progress(stage: str, done: int, total: int | None, /) -> None:
    """Say nothing."""


def client(timeout_s: float = 30.0) -> httpx.Client:
    """An HTTP client that trusts what the system and certifi trust; proxies come from the usual variables."""
    trust = ssl.create_default_context()
    trust.load_verify_locations(certifi.where())
    return httpx.Client(verify=trust, timeout=timeout_s, follow_redirects=True)


def download(
    url: str,
    target: Path,
    *,
    sha256: str,
    http: httpx.Client,
    progress: Progress = no_progress,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Fetch `url` into `target`, going on where an earlier attempt stopped. A lost connection is tried again, five
    times with growing pauses.

    Raises ModelError when the server cannot be reached or refuses, or when the bytes have another digest (the partial
    file is removed then), CapacityError when the disk is full.
    """
    part = target.with_name(target.name + ".part")
    stage = f"downloading {target.name}"
    resumed = part.exists() and part.stat().st_size > 0
    for attempt in range(ATTEMPTS):
        try:
            with room_on(target.parent):
                _continue(url, part, http, stage, progress)
            break
        except httpx.TransportError as error:
            if attempt == ATTEMPTS - 1:
                raise ModelError(
                    f"cannot download {target.name} from {_host(url)}",
                    seen=f"{type(error).__name__}: {error}",
                    fix="check the network and proxy settings, then run it again: it goes on where it stopped",
                ) from error
            sleep(min(8.0, 0.5 * 2**attempt))
    seen = file_sha256(part, progress=progress)
    if seen != sha256:
        part.unlink()
        if resumed:  # the old piece may have been of another file: once from the start
            return download(url, target, sha256=sha256, http=http, progress=progress, sleep=sleep)
        raise ModelError(
            f"{target.name} has the wrong content",
            seen=f"sha256 {seen}",
            expected=f"sha256 {sha256}",
            fix="try again; if it stays so, the server or a proxy gives out another file",
        )
    os.replace(part, target)
    return target


def _continue(url: str, part: Path, http: httpx.Client, stage: str, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with http.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:  # nothing after what is there: whole, or too long
            if have == _total_of_range(response):
                return
            part.unlink()
            raise httpx.ReadError("the partial file is longer than the file")
        if response.status_code >= 500 or response.status_code == 429:
            raise httpx.ReadError(f"HTTP {response.status_code}")
        if response.status_code not in (200, 206):
            raise ModelError(
                f"{_host(url)} refuses {part.stem}", seen=f"HTTP {response.status_code}", expected="HTTP 200"
            )
        if response.status_code == 200 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            if response.status_code == 206:
                part.unlink(missing_ok=True)
                raise httpx.ReadError("the server sent another range than asked for")
            have = 0  # it does not continue files: from the start
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None and length.isdigit() else None
        if total is not None:
            check_space(part.parent, total - have)
        with part.open("ab" if have else "wb") as file:
            progress(stage, have, total)
            for chunk in response.iter_raw():  # unbuffered: what has arrived is kept when the connection breaks
                file.write(chunk)
                have += len(chunk)
                progress(stage, have, total)
        if total is not None and have < total:
            raise httpx.ReadError(f"the connection ended at {have} of {total} bytes")


def _total_of_range(response: httpx.Response) -> int | None:
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _host(url: str) -> str:
    # Never the whole URL: it may carry a password.
    return httpx.URL(url).host or "the server"


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


_OTHER_FOLDER = "set PACELINE_HOME to another folder"


def _full(folder: Path, seen: str, expected: str) -> CapacityError:
    return CapacityError(
        f"no room in {folder}", seen=seen, expected=expected, fix=f"free some space, or {_OTHER_FOLDER}"
    )


@contextmanager
def one_at_a_time(lock_path: Path, progress: Progress = no_progress) -> Iterator[None]:
    """Hold a lock file while pulling; a second process waits and says so. The system frees it when a process dies."""
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
