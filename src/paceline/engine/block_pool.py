"""The ledger of KV blocks: which ids are free, cached, held or in limbo, and how many are promised.

    free    no content worth keeping (never used, or dropped without a label)
    cached  unreferenced, but labelled: its content can still be found; evicted in LRU order
    held    referenced by at least one sequence
    limbo   unreferenced, but pinned: a step in flight or a transfer may still touch it

free + cached + held + limbo = num_blocks after every call. Only free and cached blocks can be handed out, uncached ones
first. A *promise* (`reserved`) sets some of them aside for a prompt that was admitted; nobody else may take those.

Nothing here is proportional to the number of blocks: never used ids come from a counter, and the list of references
grows with the ids that were ever used. So a pool of a million blocks costs nothing until used.

Not covered: what a block contains (`prefix_cache`), who holds it (`kv_manager`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

Label = TypeVar("Label")
Pin: TypeAlias = int | str
"""A step's number, or the name of a transfer."""


class BlockPool(Generic[Label]):
    """Block ids 1 to `num_blocks`. `on_evict(labels)` tells the owner of labels that cached blocks were taken."""

    __slots__ = (
        "_backers",
        "_cached",
        "_claims",
        "_labels",
        "_limbo",
        "_next_fresh",
        "_num_unused",
        "_on_evict",
        "_pin_counts",
        "_refs",
        "_returned",
        "available",
        "num_blocks",
        "num_evictions",
        "pins",
        "reserved",
        "version",
    )

    def __init__(self, num_blocks: int, on_evict: Callable[[Sequence[Label]], None]) -> None:
        assert num_blocks >= 1
        self.num_blocks = num_blocks
        self.available = num_blocks  # blocks that may be taken or promised now: unused - reserved - claims
        self.reserved = 0
        self.num_evictions = 0
        self.version = 0  # moves with every change that could make a quote wrong
        self._on_evict = on_evict
        self._num_unused = num_blocks  # free or cached
        self._next_fresh = 1
        self._returned: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._refs = [0]  # by block id, as far as ids were ever used; id 0 is no block
        self._labels: dict[int, Label] = {}
        self.pins: dict[Pin, list[int]] = {}  # what each keeps from being used again
        self._pin_counts: dict[int, int] = {}
        self._limbo: set[int] = set()
        self._backers: dict[int, int] = {}
        self._claims = 0

    # counts

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._next_fresh + 1 + len(self._returned)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self._next_fresh - 1 - len(self._returned) - len(self._cached) - len(self._limbo)

    @property
    def num_limbo(self) -> int:
        return len(self._limbo)

    def refs(self, block: int) -> int:
        return self._refs[block] if block < len(self._refs) else 0

    def label(self, block: int) -> Label | None:
        return self._labels.get(block)

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def cost_of_ref(self, block: int) -> int:
        """How much `ref(block)` lowers `available`: 1 for a cached block and for one whose backer will want it back."""
        return 1 if block in self._cached or (block in self._backers and self._refs[block]) else 0

    # taking and dropping

    def allocate(self, count: int, promised: int = 0) -> list[int]:
        """`count` blocks with one reference each, `promised` of them out of the promise.

        The caller has made sure that `count - promised <= available`.
        """
        self._take(count, promised)
        refs, returned = self._refs, self._returned
        if count <= len(returned):
            blocks = returned[: -count - 1 : -1]
            del returned[len(returned) - count :]
            for block in blocks:
                refs[block] = 1
            return blocks
        blocks = returned[::-1]
        returned.clear()
        fresh = min(count - len(blocks), self.num_blocks - self._next_fresh + 1)
        if fresh:
            blocks += range(self._next_fresh, self._next_fresh + fresh)
            self._next_fresh += fresh
            refs += [0] * fresh
        if missing := count - len(blocks):
            oldest, labels = self._cached.popitem, self._labels
            evicted = [oldest(False)[0] for _ in range(missing)]
            self.num_evictions += missing
            self._on_evict([labels.pop(block) for block in evicted])
            blocks += evicted
        for block in blocks:
            refs[block] = 1
        return blocks

    def _take(self, count: int, promised: int) -> None:
        """So many of the unused blocks are not unused any more."""
        beyond = count - promised
        if beyond:
            assert 0 < beyond <= self.available
            self.available -= beyond
        if promised:
            assert 0 < promised <= self.reserved
            self.reserved -= promised
        self._num_unused -= count
        self.version += 1

    def ref(self, block: int) -> None:
        """One more holder. The block is cached, held or in limbo."""
        self.version += 1
        refs = self._refs[block]
        self._refs[block] = refs + 1
        if refs:
            if block in self._backers:
                self._claim(1)
        elif block in self._limbo:
            self._limbo.remove(block)
        else:
            del self._cached[block]
            self._num_unused -= 1
            self.available -= 1

    def deref(self, block: int, *, pin: Pin | None = None) -> None:
        """One holder less. The last one leaves the block cached (labelled), free, or in limbo (pinned).

        `pin`: a step or transfer that may still touch the block on the holder's behalf, until `unpin`.
        """
        self.version += 1
        self._refs[block] = refs = self._refs[block] - 1
        assert refs >= 0, "dropped more often than taken"
        if pin is not None:
            self.pins.setdefault(pin, []).append(block)
            self._pin_counts[block] = self._pin_counts.get(block, 0) + 1
            if block in self._backers:
                self._claim(1)
        if refs:
            if block in self._backers:
                self._claim(-1)
            return
        assert block not in self._backers
        if block in self._pin_counts:
            self._limbo.add(block)
        else:
            self._settle(block)

    def deref_all(self, blocks: Sequence[int], *, pin: Pin | None = None) -> None:
        """`deref` of each, in order; in one go where nothing is pinned or backed."""
        if pin is not None or self._backers or self._pin_counts:
            for block in blocks:
                self.deref(block, pin=pin)
            return
        refs, labels, cached, returned = self._refs, self._labels, self._cached, self._returned
        self.version += len(blocks)
        num_shared = 0  # of which others hold
        for block in blocks:
            if left := refs[block] - 1:
                assert left > 0, "dropped more often than taken"
                num_shared += 1
            elif block in labels:
                cached[block] = None
            else:
                returned.append(block)
            refs[block] = left
        self._num_unused += len(blocks) - num_shared
        self.available += len(blocks) - num_shared

    def _settle(self, block: int) -> None:
        self._num_unused += 1
        self.available += 1
        if block in self._labels:
            self._cached[block] = None
        else:
            self._returned.append(block)

    # promises

    def promise(self, count: int) -> None:
        assert 0 <= count <= self.available or not count
        self.available -= count
        self.reserved += count
        self.version += 1

    def unpromise(self, count: int) -> None:
        assert 0 <= count <= self.reserved
        self.available += count
        self.reserved -= count
        self.version += 1

    def back(self, block: int, backer: int) -> None:
        """`backer` took this block under a promise, will drop it and then needs another in its stead.

        As long as that may happen, each further holder and each pin *claims* one block of `available`, because with
        them the drop would not bring one back. Used for sliding windows, where a long prompt runs through few blocks.
        """
        assert self._refs[block] == 1
        assert block not in self._backers
        self._backers[block] = backer
        self.version += 1

    def unback(self, block: int, backer: int) -> bool:
        """End that, before the backer's own deref. False if this block is not backed by it."""
        if self._backers.get(block) != backer:
            return False
        del self._backers[block]
        self._claim(1 - self._refs[block] - self._pin_counts.get(block, 0))
        self.version += 1
        return True

    def _claim(self, count: int) -> None:
        self._claims += count
        self.available -= count

    def backers(self) -> Iterable[tuple[int, int]]:
        """(block, backer) pairs, for audits."""
        return self._backers.items()

    # labels and pins

    def set_label(self, block: int, label: Label) -> None:
        """The held block is full, immutable from now on, and worth keeping when it is dropped."""
        self.set_labels({block: label})

    def set_labels(self, labels: Mapping[int, Label]) -> None:
        """The same for each of these."""
        refs, known = self._refs, self._labels
        for block, label in labels.items():
            assert refs[block]
            assert block not in known
            known[block] = label

    def drop_label(self, block: int) -> None:
        """Nobody can find this block any more; a cached one becomes free."""
        del self._labels[block]
        self.version += 1
        if block in self._cached:
            del self._cached[block]
            self._returned.append(block)

    def unpin(self, pin: Pin) -> None:
        """The step or transfer is over. Unknown pins are fine: most steps pin nothing."""
        counts = self._pin_counts
        for block in self.pins.pop(pin, ()):
            self.version += 1
            if block in self._backers:
                self._claim(-1)
            counts[block] -= 1
            if not counts[block]:
                del counts[block]
                if block in self._limbo:
                    self._limbo.remove(block)
                    self._settle(block)

    # the law

    def check(self) -> None:
        """Assert that every block is in exactly one state and that promises are covered. Slow; for tests and audits."""
        fresh = range(self._next_fresh, self.num_blocks + 1)
        held = [block for block, count in enumerate(self._refs) if count]
        states = [*self._returned, *self._cached, *held, *self._limbo, *fresh]
        assert sorted(states) == list(range(1, self.num_blocks + 1)), "a block is in no state or in two"
        assert self.num_free + self.num_cached + self.num_held + self.num_limbo == self.num_blocks
        assert len(self._refs) == self._next_fresh, "a reference count for each id that was ever used"
        assert self.num_held == len(held)
        assert self._num_unused == self.num_free + self.num_cached
        assert all(block in self._labels for block in self._cached), "cached without a label"
        assert not any(block in self._labels for block in self._returned), "free with a label"
        assert self._limbo == {b for b in self._pin_counts if not self._refs[b]}, "limbo is pinned and unreferenced"
        pinned = [block for blocks in self.pins.values() for block in blocks]
        assert {b: pinned.count(b) for b in set(pinned)} == self._pin_counts
        assert all(self._refs[block] for block in self._backers)
        assert self._claims == sum(self._refs[b] - 1 + self._pin_counts.get(b, 0) for b in self._backers)
        assert self.reserved >= 0
        assert self.available == self._num_unused - self.reserved - self._claims
        assert self.available >= 0, "more is promised than there is"
