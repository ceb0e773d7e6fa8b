"""Who is told how an experiment goes."""

from __future__ import annotations

from typing import Protocol

from paceline.lab.experiment.results import PointResult
from paceline.lab.experiment.schedule import Point
from paceline.lab.load import Progress


class Reporter(Protocol):
    def node(self, name: str, words: str) -> None:
        """A node's server: which phase of its start, or what became of it."""
        ...

    def point_begins(self, point: Point, number: int, total: int | None) -> None:
        """`number` from 1; `total` None where a search decides."""
        ...

    def progress(self, progress: Progress) -> None: ...

    def point_ended(self, point: PointResult) -> None: ...


class Silent:
    """Says nothing."""

    def node(self, name: str, words: str) -> None:
        pass

    def point_begins(self, point: Point, number: int, total: int | None) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def point_ended(self, point: PointResult) -> None:
        pass
