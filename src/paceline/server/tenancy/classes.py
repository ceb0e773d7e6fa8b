"""Service classes: what a request may expect, and how it is ranked. A request picks one by name.

An SLO is a promise to be measured by, never a sentence: a request that misses its targets goes on. What does end one is
a timeout, or `shed` before any work was done for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from paceline.contracts.slo import Slo
from paceline.errors import RequestError

DEFAULT_CLASS = "default"


class ServiceClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Times in seconds; None asks nothing."""

    name: str
    priority: int = 0  # lower is served first, as in vLLM
    slo: Slo = Slo()
    timeout_s: float | None = None  # the request is ended then, wherever it is
    shed: bool = False  # ended unserved once its TTFT target has passed in the queue
    refuse_late: bool = False  # refused at once, with a time to come back, if its TTFT target would surely be missed


BUILT_IN_CLASSES: dict[str, ServiceClass] = {
    "interactive": ServiceClass(name="interactive", priority=-10, slo=Slo(ttft_s=0.5, tpot_s=0.05)),
    "default": ServiceClass(name="default", priority=0, slo=Slo(ttft_s=2.0, tpot_s=0.2)),
    "batch": ServiceClass(name="batch", priority=10),
}
"""What there is without a file, and beside the classes of one. A class of the same name in a file replaces it."""


class Terms(NamedTuple):
    """What a request is served under: its class, its priority and its targets."""

    service_class: ServiceClass
    priority: int
    slo: Slo

    @property
    def scheduled_for(self) -> Slo:
        """The targets that the engine works towards: those the class has, as this request loosened them. One that only
        the request has is measured and not scheduled for, or a client could hold up everybody else."""
        of_class = self.service_class.slo
        return Slo(
            ttft_s=None if of_class.ttft_s is None else self.slo.ttft_s,
            tpot_s=None if of_class.tpot_s is None else self.slo.tpot_s,
            e2e_s=None if of_class.e2e_s is None else self.slo.e2e_s,
        )

    def deadlines(self, arrival: float, timeout_s: float | None = None) -> tuple[float | None, float | None]:
        """(deadline, queue deadline) for `Request`, on the clock of `arrival`. The request's own timeout and the
        class's: the earlier one counts."""
        limits = [t for t in (timeout_s, self.service_class.timeout_s) if t is not None]
        deadline = arrival + min(limits) if limits else None
        shed = self.service_class.shed and self.slo.ttft_s is not None
        return deadline, arrival + self.slo.ttft_s if shed and self.slo.ttft_s is not None else None


def loosen(service_class: ServiceClass, asked: Slo) -> Slo:
    """The class's targets with those that a request asked for. It may ask for a later one, or for one where the class
    has none; a tighter one is refused, since nobody would schedule for it. Raises RequestError (param `slo`)."""
    merged: dict[str, float | None] = {}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        own, wish = getattr(service_class.slo, name), getattr(asked, name)
        if wish is not None and own is not None and wish < own:
            field = name.removesuffix("_s") + "_ms"
            raise RequestError(
                f"the target {field} is tighter than that of its class",
                param="slo",
                seen=f"{field} = {1e3 * wish:g}",
                expected=f"at least {1e3 * own:g}, the target of class {service_class.name}",
                fix="leave it out, loosen it, or ask for a faster class",
            )
        merged[name] = own if wish is None else wish
    return Slo(**merged)


def nearest(name: object, known: Iterable[str], words: str = "did you mean {}?") -> str:
    """A hint with the known name that `name` resembles most; empty if none does."""
    close: list[Any] = difflib.get_close_matches(str(name)[:200], list(known), n=1, cutoff=0.5)
    return words.format(close[0]) if close else ""
