"""Start-up in named phases, each timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnPhase = Callable[[str], None]


class Phases:
    """Seconds of each start-up phase, in order; `on_phase` hears the name as it begins."""

    def __init__(self, on_phase: OnPhase | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_phase = on_phase

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._on_phase is not None:
            self._on_phase(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
