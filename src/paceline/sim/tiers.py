"""Lower tiers of the KV cache: stores of blocks behind a link each, one below the other.

    device     its prefix cache; what that evicts goes to the nearest tier
    tier 1     what falls out of it goes to tier 2
    ...        what falls out of the last one is gone

A block goes down when the device evicts it, and not when it is computed: `offload_on_evict`, `write_back` and a host
cache for evicted blocks in the systems that have them. Tiers then add their room to the device's, each block crosses
the link once for each time it was pushed out, and nothing is held twice: a private tier gives up what the device has
again. Writing all that is computed (`write_through`) makes eviction free and keeps a copy for the case that the replica
dies; it costs the write traffic of every prompt, and as much room as the device has.

A tier that all replicas share keeps what is read from it, since others may want it; it has one link for all of them.
Reads and writes go one at a time each way. What was pushed out since the last look is taken as one write that began
with that look: within a run of steps nobody says when. A block can be found when its write is done.

Not modelled: a bound on what waits to be written, the hops between tiers (a block of the third tier crosses its own
link alone), checksums, wear.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from paceline.contracts.kv import BlockKey
from paceline.cost.transfer import Link
from paceline.errors import ConfigError


class TierSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tier. Of an engine over several devices: one device's part of it."""

    name: str
    capacity_bytes: int
    link: Link  # between device and tier, each way
    shared: bool = False  # one store, and one link, for all replicas

    def __post_init__(self) -> None:
        if not self.name or self.capacity_bytes <= 0:
            raise ConfigError(
                "a tier has no name or no room",
                seen=f"{self.name!r}, {self.capacity_bytes} bytes",
                expected="a name, more than 0 bytes",
            )


def check_order(specs: Sequence[TierSpec]) -> None:
    """Raise ConfigError for names that are taken, and for a private tier behind a shared one: what falls out of a
    shared tier is nobody's."""
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ConfigError("two tiers have the same name", seen=", ".join(names), expected="a name for each")
    shared = [spec.shared for spec in specs]
    if shared != sorted(shared):
        raise ConfigError(
            "a replica's own tier lies behind a shared one",
            seen=", ".join(f"{spec.name}{' (shared)' if spec.shared else ''}" for spec in specs),
            expected="shared tiers last",
        )


class Tier:
    """Blocks of `block_bytes` each, the least recently used first. `since`: when it came up (seconds)."""

    def __init__(self, spec: TierSpec, block_bytes: int, since: float = 0.0) -> None:
        self.spec = spec
        self.num_blocks = spec.capacity_bytes // block_bytes
        if self.num_blocks < 1:
            raise ConfigError(
                f"the tier {spec.name} holds no block",
                seen=f"{spec.capacity_bytes} bytes",
                expected=f"at least {block_bytes}, which is a block of this engine",
            )
        self.since = since
        self.until: float | None = None  # when its replica went
        self.reads_s = 0.0  # its link is busy towards the device
        self.writes_s = 0.0  # and the other way
        self.num_stored = 0  # blocks written
        self.num_read = 0  # blocks that left for a device
        self.num_given_up = 0  # blocks that a device has computed again
        self.num_spilled = 0  # blocks that had to make room
        self.restore_ms: list[float] = []  # by request: from the choice until its blocks were there, waits included
        self.recompute_ms: list[float] = []  # by the same requests: prefill of the same tokens
        self.num_refused = 0  # requests that left blocks here and computed them
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[BlockKey, float] = OrderedDict()  # when each is written
        self._reads_until = 0.0
        self._writes_until = 0.0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    @property
    def keys(self) -> list[BlockKey]:
        """Least recently used first."""
        return list(self._blocks)

    def has(self, key: BlockKey, now: float) -> bool:
        """It is there, and written."""
        written = self._blocks.get(key)
        return written is not None and written <= now

    def put(self, keys: Sequence[BlockKey], since: float) -> list[BlockKey]:
        """Blocks that were pushed out of the tier above from `since` on, in that order: the newest here. Returns those
        that have to make room for them. What is here already is not written again."""
        blocks = self._blocks
        num_new = sum(key not in blocks for key in keys)
        if num_new:
            takes_s = self.spec.link.ms(num_new * self._block_bytes) / 1e3
            self._writes_until = max(self._writes_until, since) + takes_s
            self.writes_s += takes_s
            self.num_stored += num_new
        for key in keys:
            blocks[key] = blocks.get(key, self._writes_until)
            blocks.move_to_end(key)
        spilled = [blocks.popitem(last=False)[0] for _ in range(len(blocks) - self.num_blocks)]
        self.num_spilled += len(spilled)
        return spilled

    def read_ms(self, num_blocks: int, now: float) -> float:
        """Milliseconds from `now` until so many blocks would be on a device: wait for the link, latency, bytes."""
        waits_s = max(0.0, self._reads_until - now)
        return 1e3 * waits_s + self.spec.link.ms(num_blocks * self._block_bytes)

    def read(self, keys: Sequence[BlockKey], now: float) -> float:
        """They leave for a device. Returns when they are there. A private tier has them no more."""
        takes_s = self.spec.link.ms(len(keys) * self._block_bytes) / 1e3
        self._reads_until = max(self._reads_until, now) + takes_s
        self.reads_s += takes_s
        self.num_read += len(keys)
        for key in reversed(keys):  # of a sequence the end has to make room before the start
            if self.spec.shared:
                self._blocks.move_to_end(key)
            else:
                del self._blocks[key]
        return self._reads_until

    def give_up(self, keys: Iterable[BlockKey]) -> None:
        """A device has these again."""
        for key in keys:
            if self._blocks.pop(key, None) is not None:
                self.num_given_up += 1

    def busy_share(self, end: float) -> float:
        """Of its time up to `end` (seconds), that of the busier way of its link."""
        lasted = (end if self.until is None else self.until) - self.since
        return min(1.0, max(self.reads_s, self.writes_s) / lasted) if lasted > 0 else 0.0

    def check(self) -> None:
        """Assert that every block that was written is here or went away in one of the ways there are."""
        left = self.num_given_up + self.num_spilled + (0 if self.spec.shared else self.num_read)
        assert len(self._blocks) <= self.num_blocks, "more than there is room for"
        assert self.num_stored == len(self._blocks) + left, "a block came or went uncounted"


class Stack:
    """The tiers of one replica, nearest first; shared ones, at the end, are the same objects for all replicas."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tuple(tiers)
        self.own = tuple(tier for tier in tiers if not tier.spec.shared)

    def find(self, key: BlockKey, now: float) -> Tier | None:
        """The nearest that has it."""
        for tier in self.tiers:
            if tier.has(key, now):
                return tier
        return None

    def push(self, keys: Sequence[BlockKey], since: float) -> None:
        """What the device evicted from `since` on, in that order."""
        for tier in self.tiers:
            if not keys:
                return
            keys = tier.put(keys, since)

    def give_up(self, keys: Sequence[BlockKey]) -> None:
        """The device has these again."""
        for tier in self.own:
            if len(tier):
                tier.give_up(keys)
