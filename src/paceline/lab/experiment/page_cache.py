"""Makes a start cold as far as that can be had without rights: the model's files leave the page cache.

`posix_fadvise(DONTNEED)` drops a file's clean pages for whoever may read it; `mincore` counts what is left. Nothing
else is dropped: the program's own libraries, other files and the device's caches stay as they are. So a cold start here
reads the weights from the disk, and is otherwise a warm one; the words in `Dropped.sentence` say that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

STAYED = 0.1  # share of the pages that may be in memory for a start to be called cold


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    num_files: int
    num_bytes: int
    resident_before: float | None  # share of the pages in memory; None where it cannot be seen
    resident_after: float | None

    @property
    def is_cold(self) -> bool:
        """Did they leave? Files in memory (tmpfs), and pages that another process maps, do not."""
        return self.num_files > 0 and (self.resident_after is None or self.resident_after <= STAYED)

    @property
    def sentence(self) -> str:
        if not self.num_files:
            return "nothing was dropped: the model's files are not known"
        share = "unknown" if self.resident_after is None else f"{self.resident_after:.0%}"
        return (
            f"pages of {self.num_files} model file(s), {self.num_bytes / 2**20:.0f} MiB, were dropped from the page "
            f"cache ({share} still in memory); programs, libraries and compile caches stayed warm"
        )


def model_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files under these files and folders, links followed."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_file():
            found.append(path.resolve())
        elif path.is_dir():
            found += [p.resolve() for p in sorted(path.rglob("*")) if p.is_file()]
    return list(dict.fromkeys(found))


def drop(files: Iterable[Path]) -> Dropped:
    """Asks the kernel to forget the files' pages, and looks whether it did. Pages another process maps stay."""
    files = list(files)
    before = resident_share(files)
    for file in files:
        with suppress(OSError):
            handle = os.open(file, os.O_RDONLY)
            try:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
    size = sum(f.stat().st_size for f in files if f.exists())
    return Dropped(num_files=len(files), num_bytes=size, resident_before=before, resident_after=resident_share(files))


def resident_share(files: Iterable[Path]) -> float | None:
    """Share of the files' pages that are in memory; None where the system does not tell."""
    total = resident = 0
    for file in files:
        pages = _resident_pages(file)
        if pages is None:
            return None
        resident, total = resident + pages[0], total + pages[1]
    return resident / total if total else None


def _resident_pages(file: Path) -> tuple[int, int] | None:
    try:
        size = file.stat().st_size
        if not size:
            return 0, 0
        with file.open("rb") as stream:
            # a private, writable mapping: mincore on a shared read-only one needs its address, which Python hides
            view = mmap.mmap(stream.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):
        return None
    num_pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * num_pages)()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_char.from_buffer(view)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size), flags)
        del address
    except AttributeError:  # not a system with mincore
        return None
    finally:
        with suppress(BufferError):
            view.close()
    return None if failed else (sum(flag & 1 for flag in flags), num_pages)
