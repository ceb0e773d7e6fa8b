"""Opening trace files: plain, .gz, a folder or a .tar.gz, with limits on what they may unpack to."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import ConfigError

MAX_BYTES = 512 * 2**20  # unpacked, one trace
MAX_ROWS = 5_000_000


def lines(path: Path) -> Iterator[str]:
    """Lines of a text file, unpacked if it ends in .gz.

    Raises ConfigError if it cannot be read, is not text, or unpacks to more than 512 MiB.
    """
    size = 0
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig") as file
        ):
            while line := file.readline(1 << 24):
                size += len(line)
                if size > MAX_BYTES:
                    raise _too_big(path)
                yield line
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError("the trace cannot be read", seen=f"{path}: {error}") from None


def members(path: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(name without folders, text) of the files of a folder or a .tar.gz whose names end so, by name.

    Nothing is written to disk. Raises ConfigError as `lines`.
    """
    size = 0
    found: list[tuple[str, str]] = []
    try:
        if path.is_dir():
            for file in sorted(p for p in path.rglob("*") if p.name.endswith(suffixes) and p.is_file()):
                size += file.stat().st_size
                if size > MAX_BYTES:
                    raise _too_big(path)
                found.append((file.name, file.read_text(encoding="utf-8-sig")))
        else:
            with tarfile.open(path, "r:*") as archive:
                for member in archive:
                    if not member.isfile() or not member.name.endswith(suffixes):
                        continue
                    size += member.size
                    if size > MAX_BYTES:
                        raise _too_big(path)
                    content = archive.extractfile(member)
                    if content is not None:
                        found.append((Path(member.name).name, io.TextIOWrapper(content, "utf-8-sig").read()))
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeDecodeError) as error:
        raise ConfigError("the trace cannot be read", seen=f"{path}: {error}") from None
    yield from sorted(found)


def _too_big(path: Path) -> ConfigError:
    return ConfigError("the trace is too big", seen=str(path), expected=f"{MAX_BYTES >> 20} MiB unpacked", fix="cut it")
