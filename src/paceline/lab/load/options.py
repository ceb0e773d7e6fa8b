"""How a load is generated, as opposed to what it asks for (the plan) and of whom (the target)."""

from __future__ import annotations

import msgspec

from paceline.errors import ConfigError


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`num_processes` None: as the rate asks, up to one per core; 0: within this process, where whatever else runs here
    disturbs the times. `max_concurrency` is divided between the processes."""

    num_processes: int | None = None
    max_concurrency: int | None = None  # requests in flight; others wait, and the wait is in their latency
    keep_text: bool = False  # the answers, in the records
    timeout_s: float = 600.0  # of a request, from its sending; a plan's fault may be shorter
    drain_s: float | None = None  # after the load, for what is still open; None: as the plan says
    keep_for_validation: bool = False  # set by run_load where answers are validated after the load

    def __post_init__(self) -> None:
        if self.num_processes is not None and not 0 <= self.num_processes <= 256:
            raise ConfigError("num_processes is out of range", seen=self.num_processes, expected="0 to 256")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError("max_concurrency is out of range", seen=self.max_concurrency, expected="at least 1")
        for name in ("timeout_s", "drain_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e7:
                raise ConfigError(f"{name} is out of range", seen=value, expected="seconds, above 0")

    @property
    def keeps_texts(self) -> bool:
        return self.keep_text or self.keep_for_validation
