"""What each sequence used, and a file of it that survives a kill -9.

Every record is one line of JSON, appended by one write(2) before `record` returns: the page cache holds it then, which
outlives the process. A power cut may lose what was not yet on disk, at most `SYNC_S` seconds of it (a thread calls
fsync). A torn last line, from a cut or a full disk, is mended when the file is opened.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from paceline.errors import ConfigError
from paceline.server.tenancy.usage_record import UsageRecord

__all__ = ["SYNC_S", "UsageLedger", "UsageRecord", "read_usage"]

SYNC_S = 1.0
_MAX_KEPT = 10_000  # records that wait for a disk to recover; older ones are lost, and counted

_log = logging.getLogger("paceline.usage")
_encoder = msgspec.json.Encoder()


class UsageLedger:
    """Appends records to `path`, for one server at a time; without a path it only counts.

    A disk that fails fails no request: records wait in memory, are tried again with the next one and every second, and
    what is lost in the end is counted. Threads may share it. Raises ConfigError at construction for a file that cannot
    be opened.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.num_records = 0  # handed in
        self.num_written = 0
        self.num_errors = 0  # writes and syncs that failed
        self.num_lost = 0
        self._lock = threading.Lock()
        self._kept: deque[bytes] = deque()
        self._failing = False
        self._torn = False  # the file ends within a line, since cutting it back failed too
        self._dirty = False
        self._file = -1
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self.path is not None:
            self._file = _open(self.path)
            self._thread = threading.Thread(target=self._run, name="paceline-usage", daemon=True)
            self._thread.start()

    def record(self, record: UsageRecord) -> bool:
        """True: it is in the file. False: it is kept for later, or there is no file. Never raises for the disk."""
        with self._lock:
            self.num_records += 1
            if self._file < 0:
                return False
            self._kept.append(_encoder.encode(record) + b"\n")
            self._write_kept()
            if len(self._kept) > _MAX_KEPT:
                self._kept.popleft()
                self.num_lost += 1
            return not self._kept

    @property
    def num_kept(self) -> int:
        """Records that wait for the disk."""
        return len(self._kept)

    def close(self) -> None:
        """Write what is left, sync, and give the file up. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._file < 0:
                return
            self._write_kept()
            self.num_lost += len(self._kept)
            self._kept.clear()
            self._sync()
            os.close(self._file)
            self._file = -1

    # --- the file; all with the lock held

    def _write_kept(self) -> None:
        while self._kept:
            try:
                self._append(self._kept[0])
            except OSError as error:
                self._note_failure(error)
                return
            self._kept.popleft()
            self.num_written += 1
            self._dirty = True
        if self._failing:
            self._failing = False
            _log.warning("the usage file %s can be written again", self.path)

    def _append(self, line: bytes) -> None:
        """The whole line or none of it."""
        if self._torn:
            line = b"\n" + line  # the fragment becomes a line of its own, which readers skip
        size = os.fstat(self._file).st_size
        done = os.write(self._file, line)
        if done == len(line):
            self._torn = False
            return
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self._torn = True
        raise OSError(f"only {done} of {len(line)} bytes were written")

    def _note_failure(self, error: OSError) -> None:
        self.num_errors += 1
        if not self._failing:  # once per trouble, not once per request
            self._failing = True
            _log.error("the usage file %s cannot be written: %s; records are kept and tried again", self.path, error)

    def _sync(self) -> None:
        if not self._dirty:
            return
        try:
            os.fsync(self._file)
            self._dirty = False
        except OSError as error:
            self._note_failure(error)

    def _run(self) -> None:
        while not self._stop.wait(SYNC_S):
            with self._lock:
                self._follow_rename()
                self._write_kept()
                dirty, self._dirty = self._dirty, False
                file = os.dup(self._file) if dirty else -1
            if file >= 0:  # a slow disk holds up this thread, and no request
                try:
                    os.fsync(file)
                except OSError as error:
                    with self._lock:
                        self._dirty = True
                        self._note_failure(error)
                finally:
                    os.close(file)

    def _follow_rename(self) -> None:
        """The file was moved away (logrotate does): go on in a new one of the old name."""
        assert self.path is not None
        try:
            here = os.stat(self.path)
        except FileNotFoundError:
            here = None
        except OSError:
            return
        mine = os.fstat(self._file)
        if here is not None and (here.st_dev, here.st_ino) == (mine.st_dev, mine.st_ino):
            return
        try:
            new = _open(self.path)
        except ConfigError as error:
            if not self._failing:
                _log.error("%s", error)
            self._failing = True
            return
        self._sync()
        os.close(self._file)
        self._file, self._torn = new, False


def _open(path: Path) -> int:
    """The file for appending, locked and mended."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise ConfigError(
            "the usage file cannot be opened",
            seen=f"{path}: {error.strerror}",
            fix="check that its folder exists and may be written to",
        ) from None
    try:
        with suppress(OSError):  # a file system without locks
            _lock_file(file, path)
        _mend(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _lock_file(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            "another server writes this usage file", seen=str(path), fix="give each server a file of its own"
        ) from None


def _mend(file: int) -> None:
    """Cut off a torn last line; a whole one that lacks only its end gets it."""
    size = os.fstat(file).st_size
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(1 << 16, start)
        start -= step
        tail = os.pread(file, step, start) + tail
    fragment = tail[tail.rfind(b"\n") + 1 :]
    if not fragment:
        return
    try:
        msgspec.json.decode(fragment, type=UsageRecord)
    except msgspec.MsgspecError:
        os.ftruncate(file, size - len(fragment))
        _log.warning("cut %d bytes of a torn record off the end of the usage file", len(fragment))
    else:
        os.write(file, b"\n")


def read_usage(path: Path | str) -> Iterator[UsageRecord]:
    """The records of a file, oldest first. Lines that are no records (torn by a full disk) are skipped."""
    decoder = msgspec.json.Decoder(UsageRecord)
    with Path(path).open("rb") as lines:
        for line in lines:
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError:
                continue
