"""Blocks for those who run: grow, or take a victim's.

A victim loses its residency and waits again with its age; its KV is recomputed when it comes back. Blocks that a step
in flight still touches come back later, so nobody else is preempted while such blocks are on their way.
"""

from __future__ import annotations

from paceline.contracts.decision import Reason
from paceline.contracts.kv import KVLayout
from paceline.contracts.request import FinishReason
from paceline.engine import policies
from paceline.engine.kv_manager import NewBlocks
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.plan_columns import Selection
from paceline.engine.request_state import RequestState


class Room:
    __slots__ = ("_block_size", "_kv", "_layout", "_life", "num_in_flight")

    def __init__(self, life: Lifecycle, layout: KVLayout) -> None:
        self._life = life
        self._kv = life.kv
        self._layout = layout
        self._block_size = layout.block_size
        self.num_in_flight = 0  # plans submitted and not applied

    def grow(self, selection: Selection, state: RequestState, num_tokens: int, now: float) -> bool:
        """Blocks for positions [0, num_tokens) without harming anybody. False: there are not enough."""
        assert state.kv is not None
        new = self._kv.grow(state.kv, num_tokens)
        if new is None:
            return False
        self._note(selection, state, num_tokens, new, now)
        return True

    def make(self, selection: Selection, state: RequestState, num_tokens: int, now: float) -> bool:
        """The same for a row that must run, from victims if need be: nobody of a higher class, perhaps itself.
        False: not in this step."""
        while not self.grow(selection, state, num_tokens, now):
            if self.num_coming():
                return False
            running = self._life.running
            if len(running) == 1:
                self.refuse(state, now)
                return False
            victim = policies.pick_victim(running.values(), self._life.queue.debt, at_least=state.priority)
            assert victim is not None  # at least the one in need
            self.take(selection, victim, Reason.BLOCKS_FOR_DECODE, state, now)
            if victim is state:
                return False
        return True

    def _note(self, selection: Selection, state: RequestState, num_tokens: int, new: NewBlocks, now: float) -> None:
        size = self._block_size
        state.capacity = -(-num_tokens // size) * size
        state.account_blocks(now)
        if selection.written:
            selection.grown.append((state, new))

    def num_coming(self) -> int:
        """Blocks that were given back and become free when the plans in flight have ended."""
        return self._kv.num_limbo if self.num_in_flight else 0

    def take(
        self, selection: Selection, victim: RequestState, reason: Reason, needer: RequestState, now: float
    ) -> None:
        self._life.preempt(victim, reason, now, other=needer)
        highest = selection.victim_class
        selection.victim_class = victim.priority if highest is None else min(highest, victim.priority)

    def refuse(self, state: RequestState, now: float) -> None:
        """Alone with the whole cache and still short: it can never fit."""
        layout = self._layout
        message = (
            f"the request does not fit the KV cache, even alone: {state.known} tokens known, and {layout.num_blocks} "
            f"blocks of {layout.block_size} tokens for {len(layout.groups)} KV groups"
        )
        self._life.finish(state, FinishReason.ERROR, Reason.NEVER_FITS, now, error=message)
