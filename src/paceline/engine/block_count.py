"""The ledger of KV blocks without their names: how many are free, held, in limbo and promised, and no more.

Where nothing is computed and nothing is found again, as in a simulation without a prefix cache, nobody ever reads which
block a row has. Taking and giving back are then one addition each. All decisions depend on counts alone, so they are
those of the named ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.engine.block_pool import BlockPool, Label, Pin


class CountedPool(BlockPool[Label]):
    """Blocks are given back by number (`give_back`); what needs a name, a reference or a label, is not there."""

    __slots__ = ()

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, lambda _: None)

    @property
    def num_free(self) -> int:
        return self._num_unused

    @property
    def num_held(self) -> int:
        return self.num_blocks - self._num_unused - self.num_limbo

    @property
    def num_limbo(self) -> int:
        return sum(map(sum, self.pins.values()))

    def allocate(self, count: int, promised: int = 0) -> list[int]:
        """`count` blocks are taken, `promised` of them out of the promise. No names: the list is empty."""
        self._take(count, promised)
        return []

    def give_back(self, count: int, pin: Pin | None = None) -> None:
        """`count` held blocks are free, or wait in limbo until `unpin(pin)`."""
        assert 0 <= count <= self.num_blocks - self._num_unused, "more is given back than was taken"
        self.version += 1
        if pin is None:
            self._num_unused += count
            self.available += count
        else:
            self.pins.setdefault(pin, []).append(count)  # numbers of blocks, not their names

    def unpin(self, pin: Pin) -> None:
        count = sum(self.pins.pop(pin, ()))
        self._num_unused += count
        self.available += count
        self.version += 1

    def ref(self, block: int) -> None:
        raise AssertionError("a block without a name has one holder")

    def deref(self, block: int, *, pin: Pin | None = None) -> None:
        raise AssertionError("blocks without names are given back by number")

    def deref_all(self, blocks: Sequence[int], *, pin: Pin | None = None) -> None:
        assert not blocks, "blocks without names are given back by number"

    def set_labels(self, labels: Mapping[int, Label]) -> None:
        raise AssertionError("a block without a name cannot be found again")

    def check(self) -> None:
        assert 0 <= self.num_free <= self.num_blocks
        assert self.num_held >= 0
        assert self.reserved >= 0
        assert self.available == self._num_unused - self.reserved
        assert self.available >= 0, "more is promised than there is"
