"""Laws of the KV manager under random scripts on tiny pools, checked against a model of the device's memory.

The model writes into every slot what the KV of that position depends on (domain and all tokens up to it) and looks, at
every computed position, whether all slots it sees hold what they must. So a wrong hit, a wrong copy, a window that let
go too early or a block given away too early shows as wrong content, whoever is to blame.

Ledger: free + cached + held + limbo = total after every operation; limbo drains; all goes back to the baseline.
Isolation: nothing is hit across salts, tenants, adapters, KV dtypes, model revisions or a reset.
Window: a sliding group holds at most ceil((w + chunk) / block) + 1 blocks per sequence.
Promise: growth up to the tokens known at admission never fails.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.contracts.kv import NULL_BLOCK, KVGroupSpec, KVLayout, ceil_div
from paceline.contracts.request import Request, TokenPrompt
from paceline.engine.kv_manager import KVManager, SequenceKeys, SequenceKV

DOMAINS = (
    {},
    {"cache_salt": b"s"},
    {"tenant": "other"},
    {"adapter_digest": b"s"},
    {"cache_salt": b"s", "adapter_digest": b"s"},
)


def make_layout(block_size: int, windows: tuple[int | None, ...], num_blocks: int, dtype: str = "float32") -> KVLayout:
    groups = tuple(
        KVGroupSpec(
            kind="full" if window is None else "sliding",
            layers=(index,),
            block_size=block_size,
            bytes_per_block=64,
            window=window,
        )
        for index, window in enumerate(windows)
    )
    return KVLayout(groups=groups, num_blocks=num_blocks, dtype=dtype)


@dataclass
class Row:
    """A request with both of its sides: what the host knows, and what the device has."""

    request: Request
    domain: int
    keys: SequenceKeys
    known: list[int]
    kv: SequenceKV | None = None
    epoch: int = 0
    planned: int = 0
    promised_end: int = 0
    in_flight: deque[int] = field(default_factory=deque)
    device_tokens: list[int] = field(default_factory=list)
    device_tables: list[dict[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    leader: Row | None = None
    readmission: bool = False


@dataclass
class Step:
    number: int
    rows: list[tuple[Row, int, int, int | None]]  # row, epoch, end, drawn token
    touched: set[int]


class World:
    def __init__(self, layout: KVLayout, chunk: int, depth: int, prefix_caching: bool) -> None:
        self.layout = layout
        self.chunk = chunk
        self.depth = depth
        self.kv = KVManager(layout, prefix_caching=prefix_caching, max_chunk_tokens=chunk * depth)
        self.rows: list[Row] = []
        self.steps: deque[Step] = deque()
        self.next_step = 0
        self.next_id = 0
        self.memory: dict[tuple[int, int], Any] = {}  # (block, slot) -> (domain, tokens up to it)
        self.written_in: dict[tuple[int, int], int] = {}  # (block, slot) -> generation
        self.generation = 0
        self.max_output = 9
        self.grabber: Row | None = None
        self.num_hits = self.num_forks = self.num_shortages = 0

    # operations of a scheduler

    def grab(self) -> None:
        """A prompt nobody else has takes all that may be taken, so that promises have nothing to fall back on; the
        next time it goes."""
        if self.grabber is not None:
            self.release(self.grabber)
            self.rows.remove(self.grabber)
            self.grabber = None
        elif num_blocks := self.kv.num_available // len(self.layout.groups):
            self.submit([7 + self.next_id] * (num_blocks * self.layout.block_size), 0)
            self.grabber = self.rows[-1]
            self.admit(self.grabber, use_cache=True, wait=False)

    def submit(self, tokens: list[int], domain: int, leader: Row | None = None) -> None:
        prompt = TokenPrompt(ids=np.array(tokens, dtype=np.int32))
        request = Request(request_id=self.next_id, prompt=prompt, **DOMAINS[domain])
        self.next_id += 1
        self.rows.append(Row(request, domain, self.kv.keys_for(request), list(tokens), leader=leader))

    def admit(self, row: Row, use_cache: bool, wait: bool) -> None:
        if row.kv is not None:
            return
        known = len(row.known)
        leader = row.leader.kv if row.leader is not None and not row.readmission else None
        quote = self.kv.quote(
            row.request.request_id,
            row.keys,
            known,
            max_hit_tokens=known - 1,
            use_cache=use_cache,
            fork_from=leader,
            fork_tokens=row.request.num_prompt - 1 if leader is not None else 0,
            readmission=row.readmission,
        )
        assert quote.hit_tokens < known
        if quote.sibling is None:
            assert quote.hit_tokens % self.layout.block_size == 0
        if quote.pending is not None:
            assert quote.pending.owner != row.request.request_id
            assert quote.pending.num_tokens > 0
            if wait:
                return
        fits = self.kv.fits(quote)
        kv = self.kv.reserve(quote)
        assert (kv is not None) == fits
        if kv is None:
            # alone in the pool all that can ever fit does fit: nobody waits for ever
            assert self.steps or any(other.kv is not None for other in self.rows) or self.kv.never_fits(known)
            return
        row.kv, row.planned, row.promised_end = kv, kv.num_computed, known
        row.epoch += 1
        row.device_tokens = list(row.known)
        row.device_tables = [{} for _ in self.layout.groups]
        row.copies = list(kv.copies)
        targets = {target for _, target in kv.copies}
        self.learn(row, [column for column in kv.columns() if column[2] in targets], fresh=True)
        self.learn(row, [column for column in kv.columns() if column[2] not in targets], fresh=False)
        if quote.sibling is None:
            self.num_hits += quote.hit_tokens > 0
            for table in row.device_tables:
                for block in table.values():
                    for slot in range(self.layout.block_size):
                        assert self.written_in[block, slot] == self.generation, "hit across a reset"
        else:
            self.num_forks += 1

    def learn(self, row: Row, columns: Any, *, fresh: bool) -> None:
        for group, index, block in columns:
            assert 1 <= block <= self.layout.num_blocks
            row.device_tables[group][index] = block
            if fresh:
                for step in self.steps:
                    assert block not in step.touched, "a block was given away while a step in flight touches it"
                for slot in range(self.layout.block_size):
                    self.memory[block, slot] = "poison"

    def plan(self, tokens: list[int]) -> None:
        if len(self.steps) >= self.depth:
            return
        step = Step(self.next_step, [], set())
        self.next_step += 1
        for index, row in enumerate(list(self.rows)):
            if row.kv is None:
                continue
            count = min(self.chunk, len(row.device_tokens) - row.planned)
            if count <= 0:
                continue
            end = row.planned + count
            new = self.kv.grow(row.kv, end)
            if new is None:
                assert end > row.promised_end, "growth failed within the promise"
                self.num_shortages += 1
                self.release(row)
                continue
            self.learn(row, new, fresh=True)
            self.compute(row, row.planned, end, step)
            drawn = None
            if end == len(row.device_tokens):
                drawn = tokens[(index + self.next_step) % len(tokens)]
                row.device_tokens.append(drawn)
            row.planned = end
            row.in_flight.append(step.number)
            step.rows.append((row, row.epoch, end, drawn))
        self.steps.append(step)

    def compute(self, row: Row, begin: int, end: int, step: Step) -> None:
        size = self.layout.block_size
        for source, target in row.copies:
            step.touched |= {source, target}
            for slot in range(size):
                self.memory[target, slot] = self.memory[source, slot]
                self.written_in[target, slot] = self.written_in.get((source, slot), -1)
        row.copies = []
        for group, table in zip(self.layout.groups, row.device_tables, strict=True):
            for position in range(begin, end):
                block, slot = table[position // size], position % size
                self.memory[block, slot] = (row.domain, tuple(row.device_tokens[: position + 1]))
                self.written_in[block, slot] = self.generation
            for position in range(begin, end):
                low = 0 if group.window is None else max(0, position - group.window + 1)
                for seen in range(low, position + 1):
                    block = table[seen // size]
                    step.touched.add(block)
                    want = (row.domain, tuple(row.device_tokens[: seen + 1]))
                    assert self.memory[block, seen % size] == want, "a position sees KV that is not its own"

    def apply(self) -> None:
        if not self.steps:
            return
        step = self.steps.popleft()
        for row, epoch, end, drawn in step.rows:
            if row.kv is None or row.epoch != epoch:
                continue
            row.in_flight.popleft()
            if drawn is not None:
                row.known.append(drawn)
                row.keys.extend([drawn])
            self.kv.commit(row.kv, row.keys, end)
            if len(row.known) >= row.request.num_prompt + self.max_output and row is not self.grabber:
                self.release(row)
                self.rows.remove(row)
        self.kv.step_done(step.number)

    def release(self, row: Row) -> None:
        if row.kv is not None:
            self.kv.release(row.kv, in_flight_step=row.in_flight[-1] if row.in_flight else None)
            row.kv = None
            row.in_flight.clear()
            row.readmission = True

    def reset(self) -> None:
        empty = self.kv.reset()
        self.generation += 1
        stats = self.kv.stats()
        assert stats.cached == 0
        assert empty == (stats.held + stats.limbo == 0)

    def check(self) -> None:
        self.kv.check()
        stats = self.kv.stats()
        assert stats.free + stats.cached + stats.held + stats.limbo == stats.total == self.layout.num_blocks
        assert stats.reserved <= stats.free + stats.cached
        for row in self.rows:
            if row.kv is not None:
                for group, table in zip(self.layout.groups, row.kv.tables, strict=True):
                    if group.window is not None:
                        held = sum(block != NULL_BLOCK for block in table)
                        bound = ceil_div(group.window + self.chunk * self.depth, group.block_size) + 1
                        assert held <= bound
        if not self.steps:
            assert stats.limbo == 0

    def drain(self) -> None:
        while self.steps:
            self.apply()
            self.check()
        for row in self.rows:
            self.release(row)
            self.check()
        stats = self.kv.stats()
        assert stats.held == stats.limbo == stats.reserved == 0
        assert self.kv.num_available == stats.total
        self.kv.settled()
        assert self.kv.reset()
        assert not self.kv.settled()
        assert self.kv.stats().free == stats.total


WINDOWS = ((None,), (3,), (None, 4), (None, 1), (5, None, 2), (None, 7, 7))
OPERATIONS = ("submit", "fork", "admit", "admit", "admit", "plan", "plan", "plan", "apply", "apply", "release", "grab")


def perform(world: World, bases: list[list[int]], op: str, a: int, b: int) -> None:
    row = world.rows[a % len(world.rows)] if world.rows else None
    few = len(world.rows) < 9
    if op == "submit" and few:
        base = bases[a % len(bases)]
        world.submit(base[: max(1, len(base) - b % 5)] + [b % 3] * (b % 2), domain=max(0, b % 11 - 6))
    elif op == "grab":
        world.grab()
    elif op == "plan":
        world.plan([b % 3, a % 2])
    elif op == "apply":
        world.apply()
    elif op == "reset":
        world.reset()
    elif row is not None and op == "fork" and few:
        world.submit(row.known[: row.request.num_prompt], row.domain, leader=row)
    elif row is not None and op == "admit":
        world.admit(row, use_cache=b % 8 != 7, wait=b % 2 == 1)
    elif row is not None and op == "release":
        world.release(row)
        if (b % 2 or not few) and row is not world.grabber:
            world.rows.remove(row)
    world.check()


@settings(max_examples=100, deadline=None)
@given(
    block_size=st.sampled_from([1, 2, 4]),
    windows=st.sampled_from(WINDOWS),
    num_blocks=st.integers(3, 60),
    chunk=st.integers(1, 9),
    depth=st.integers(1, 2),
    prefix_caching=st.booleans(),
    bases=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=2),
    script=st.lists(
        st.tuples(st.sampled_from([*OPERATIONS, "reset"]), st.integers(0, 8), st.integers(0, 40)), max_size=60
    ),
)
@example(
    block_size=2,
    windows=(None, 4),
    num_blocks=24,
    chunk=3,
    depth=2,
    prefix_caching=True,
    bases=[[0, 1, 2, 0, 1, 2, 0, 1, 2]],
    script=[
        *[("submit", 0, 8), ("admit", 0, 0)],
        *[("plan", 0, 0), ("apply", 0, 0)] * 6,
        *[("fork", 0, 0), ("admit", 1, 0), ("plan", 0, 0), ("release", 0, 0), ("plan", 0, 0), ("reset", 0, 0)],
    ],
)
def test_any_script_keeps_the_ledger_and_shows_no_sequence_foreign_content(
    block_size: int,
    windows: tuple[int | None, ...],
    num_blocks: int,
    chunk: int,
    depth: int,
    prefix_caching: bool,
    bases: list[list[int]],
    script: list[tuple[str, int, int]],
) -> None:
    world = World(make_layout(block_size, windows, num_blocks), chunk, depth, prefix_caching)
    for op, a, b in script:
        perform(world, bases, op, a, b)
    world.drain()


def long_run(seed: int, length: int = 200) -> World:
    """A long script: deep states that drawn lists seldom reach. Prompts are long for their windows, pools tight."""
    random = Random(seed)
    block_size, chunk, depth = random.choice([1, 2, 3, 4]), random.randint(1, 6), random.randint(1, 2)
    windows, longest = random.choice(WINDOWS), random.choice([10, 20, 60])
    enough = make_layout(block_size, windows, 1).max_blocks(longest, chunk * depth)
    layout = make_layout(block_size, windows, random.randint(enough, 3 * enough))
    world = World(layout, chunk, depth, prefix_caching=random.random() < 0.85)
    bases = [[random.randint(0, 2) for _ in range(random.randint(4, longest))] for _ in range(2)]
    for _ in range(length):
        op = random.choice(OPERATIONS) if random.random() < 0.98 else "reset"
        perform(world, bases, op, random.randint(0, 8), random.randint(0, 80))
    world.drain()
    return world


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_long_scripts_keep_the_same_laws(seed: int) -> None:
    long_run(seed)


def test_long_scripts_reach_what_the_laws_are_about() -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        world = long_run(seed)
        stats = world.kv.stats()
        seen.update(stats.miss_reasons)
        seen.update(
            hits=world.num_hits, forks=world.num_forks, evictions=stats.evictions, shortages=world.num_shortages
        )
    reasons = ("cold", "partial", "evicted", "in_flight", "other_salt_or_adapter", "prompt_logits", "disabled")
    assert all(seen[name] > 0 for name in (*reasons, "hits", "forks", "evictions", "shortages")), seen
