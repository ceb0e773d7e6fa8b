"""The terminal during a run: one live block on a terminal, a plain line every few seconds anywhere else.

    with LiveProgress("bench") as show:
        run_load(target, plan, content, on_progress=show)

The closing summary is in `summary`. Standard error is the right place for both: standard output stays for results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.lab.report.words import NOTHING, count, exact, number, seconds

if TYPE_CHECKING:
    from paceline.lab.load.progress import Progress

PLAIN_EVERY_S = 5.0
_BAR_WIDTH = 40


class LiveProgress:
    """Call it with each `Progress`. Nothing of it runs in a thread; it draws when it is called."""

    def __init__(
        self, title: str = "load", *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._live: Live | None = None
        self._said_at: float | None = None
        self._newest: Progress | None = None

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._newest is not None:
            self._say(self._newest)  # how it stood at the end stays on the screen

    def __call__(self, progress: Progress) -> None:
        self._newest = progress
        if self._live is not None:
            self._live.update(live_block(self._title, progress), refresh=True)
        elif self._said_at is None or self._clock() - self._said_at >= PLAIN_EVERY_S:
            self._say(progress)

    def _say(self, progress: Progress) -> None:
        self._said_at = self._clock()
        self._console.print(f"{self._title}: {plain_line(progress)}", markup=False, highlight=False, soft_wrap=True)


def plain_line(progress: Progress) -> str:
    """`12 s of 60 s: 71 of 360 sent, 5.92 req/s, ...`"""
    p = progress
    of = f" of {exact(p.span_s)}" if p.span_s > 0 else ""
    parts = [
        f"{count(p.num_sent)} of {count(p.num_planned)} sent",
        f"{number(p.rate_rps)} req/s",
        f"{count(p.num_in_flight)} in flight",
        f"{count(p.num_done)} done" + (f", {count(p.num_failed)} failed" if p.num_failed else ""),
    ]
    if p.ttft_p50_s is not None:
        parts.append(f"TTFT p50 {seconds(p.ttft_p50_s)}, p95 {seconds(p.ttft_p95_s)}")
    if p.tpot_p50_s is not None:
        parts.append(f"TPOT p50 {seconds(p.tpot_p50_s)}")
    parts.append(_left(p))
    return f"{p.elapsed_s:.0f} s{of}: {'; '.join(part for part in parts if part)}".replace("\u00a0", " ")


def live_block(title: str, progress: Progress) -> Group:
    """A bar, and the figures under it."""
    p = progress
    total, done = (
        (p.span_s, min(p.elapsed_s, p.span_s)) if p.span_s > 0 else (float(max(1, p.num_planned)), float(p.num_done))
    )
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text.from_markup(f"[bold]{escape(title)}[/bold]"), ProgressBar(total=total, completed=done, width=_BAR_WIDTH),
        f"{p.elapsed_s:.0f} s" + (f" of {exact(p.span_s)}" if p.span_s > 0 else ""), Text(_left(p), style="dim"),
    )  # fmt: skip
    figures = Table.grid(padding=(0, 2))
    cells = (
        ("rate", f"{number(p.rate_rps)} req/s"),
        ("in flight", count(p.num_in_flight)),
        ("done", f"{count(p.num_done)} of {count(p.num_planned)}"),
        ("failed", Text(count(p.num_failed), style="red" if p.num_failed else "")),
        ("TTFT p50", _time(p.ttft_p50_s)),
        ("p95", _time(p.ttft_p95_s)),
        ("TPOT p50", _time(p.tpot_p50_s)),
    )
    figures.add_row(*(Text(name, style="dim") for name, _ in cells))
    figures.add_row(*(value if isinstance(value, Text) else Text(value) for _, value in cells))
    return Group(head, figures)


def _left(progress: Progress) -> str:
    if progress.draining:
        return f"draining, {count(progress.num_in_flight)} left"
    return f"{seconds(progress.time_left_s)} left" if progress.time_left_s is not None else ""


def _time(value: float | None) -> str:
    return NOTHING if value is None else seconds(value)
