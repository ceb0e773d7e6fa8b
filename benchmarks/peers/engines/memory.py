"""How much memory an engine holds at most, whatever it is made of. Linux."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

EVERY_S = 0.25


def tree(root: int) -> list[int]:
    """`root` and the processes below it, those that are there."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        children.setdefault(parent, []).append(int(folder.name))
    found, open_ = [], [root]
    while open_:
        pid = open_.pop()
        found.append(pid)
        open_ += children.get(pid, [])
    return found


def held(rollup: str) -> tuple[int, int]:
    """(private, shared) bytes of a process, from its smaps_rollup."""
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in rollup.splitlines()[1:])}
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    return private * 1024, (kib["Rss"] - private) * 1024


def resident_bytes(root: int) -> int:
    """What all have for themselves, and the most that one of them shares.

    Not the proportional size: that would halve the pages of a library because another engine waits beside this one."""
    private, shared = 0, 0
    for pid in tree(root):
        try:
            own, with_others = held(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except OSError:
            continue
        private, shared = private + own, max(shared, with_others)
    return private + shared


class Peak:
    """`with Peak(pid) as peak: ...; peak.bytes`: the most seen meanwhile, looked at four times a second."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._look()
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        self.bytes = max(self.bytes, resident_bytes(self._pid))

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self._look()
