"""Resumable downloads over HTTP.

An unfinished file is kept as `<name>.part` and continued from its end; it gets its real name only when it is whole and
its digest is right, so a file with its real name can be trusted.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import certifi
import httpx

from paceline.errors import ModelError
from paceline.hub.disk import Progress, check_space, file_sha256, no_progress, room_on

ATTEMPTS = 5


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
