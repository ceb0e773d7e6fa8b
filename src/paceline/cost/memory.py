"""The one memory ledger: what each part takes, predicted before start and measured after, and the KV size that follows.

    device memory = weights + draft model + adapters + encoder + KV + recurrent state + activations + communication
                  + graphs and engine + margin + left

The KV cache never gets all the rest. Activations are those of the *worst* step the configuration admits (`workspace`),
a margin stands by itself, and KV stops at what the running sequences and the prefix cache can use, so that memory
beyond it stays with the machine ("left"). Pure: every number is passed in; whoever calls measured it.

Not covered: memory of other processes that grows after start, and fragmentation inside an allocator (the margin is for
both).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import msgspec

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.specs import ModelSpec
from paceline.errors import CapacityError

MIB = 1 << 20
GIB = 1 << 30
MARGIN_SHARE = 0.05
MIN_MARGIN_BYTES = 64 * MIB
NAMES = {"graphs": "graphs and engine", "state": "recurrent state"}  # of entries, as they are shown


def format_bytes(num_bytes: float) -> str:
    """1.50 GiB, 64.0 MiB, 512 B."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes:.0f} B"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger."""

    name: str
    predicted_bytes: int
    measured_bytes: int | None = None  # None: not measured (yet)
    how: str = ""  # the formula with its numbers


class MemoryLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Every byte the engine means to use on one device. `total` and what is `left` add up to `device_bytes`."""

    weights: Entry
    draft_model: Entry
    adapters: Entry
    encoder: Entry
    kv: Entry
    state: Entry
    activations: Entry
    communication: Entry
    graphs: Entry
    margin: Entry
    device_bytes: int  # what this process could use at most when it looked
    budget_bytes: int  # of that, what memory_utilization grants

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (
            self.weights,
            self.draft_model,
            self.adapters,
            self.encoder,
            self.kv,
            self.state,
            self.activations,
            self.communication,
            self.graphs,
            self.margin,
        )

    @property
    def total(self) -> int:
        """Bytes predicted, margin included."""
        return sum(e.predicted_bytes for e in self.entries)

    @property
    def left(self) -> int:
        """Bytes of the device that stay with other processes."""
        return self.device_bytes - self.total

    @property
    def predicted_peak(self) -> int:
        """Most the engine should ever be seen to use: everything but the margin."""
        return self.total - self.margin.predicted_bytes

    def with_measured(self, **measured: int) -> MemoryLedger:
        """A copy with measured bytes filled in, by entry name."""
        changed = {
            name: msgspec.structs.replace(getattr(self, name), measured_bytes=num_bytes)
            for name, num_bytes in measured.items()
        }
        return msgspec.structs.replace(self, **changed)

    def render(self) -> list[tuple[str, str, str, str]]:
        """Rows (part, predicted, measured, how) for a table; parts that take nothing are left out."""
        rows = []
        for entry in self.entries:
            if not entry.predicted_bytes and not entry.measured_bytes:
                continue
            measured = "" if entry.measured_bytes is None else format_bytes(entry.measured_bytes)
            name = NAMES.get(entry.name, entry.name.replace("_", " "))
            rows.append((name, format_bytes(entry.predicted_bytes), measured, entry.how))
        rows.append(("total", format_bytes(self.total), "", f"of {format_bytes(self.budget_bytes)} granted"))
        rows.append(("left to others", format_bytes(self.left), "", f"of {format_bytes(self.device_bytes)} usable"))
        return rows


def weight_bytes(spec: ModelSpec, dtype_bytes: int) -> int:
    """Weights once loaded in a full-precision type; tied embeddings exist once."""
    return spec.num_parameters * dtype_bytes


def margin_bytes(budget_bytes: int, share: float = MARGIN_SHARE) -> int:
    """What stays free inside the budget for what no formula sees."""
    return max(MIN_MARGIN_BYTES, int(budget_bytes * share))


def kv_blocks_that_fit(available_bytes: int, groups: Sequence[KVGroupSpec]) -> int:
    """Usable blocks in `available_bytes`; the null block is paid for and not counted. All groups share one pool."""
    return max(0, available_bytes // groups[0].bytes_per_block - 1)


def kv_blocks_useful(
    groups: Sequence[KVGroupSpec], *, max_num_seqs: int, context_tokens: int, chunk_tokens: int, reserve: float
) -> int:
    """Blocks that `max_num_seqs` sequences of `context_tokens` hold, and `reserve` times as many for prefixes."""
    layout = KVLayout(groups=tuple(groups), num_blocks=1)
    return ceil(max_num_seqs * layout.max_blocks(context_tokens, chunk_tokens) * (1 + reserve))


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided: the measured-at-start half of the configuration."""

    ledger: MemoryLedger
    num_blocks: int
    max_model_len: int
    notes: tuple[str, ...] = ()  # what was lowered or capped, with numbers


class MemoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `plan_memory` needs to know."""

    groups: tuple[KVGroupSpec, ...]
    device_bytes: int  # what this process could use at most, its own use included
    available_bytes: int  # free for it now: min(MemAvailable, cgroup limit - usage), or the device's free memory
    taken_bytes: int  # what it has taken already (weights in place, runtime); part of neither of the above if 0
    weight_bytes: int
    weights_in_place: bool  # True: weight_bytes was measured and is part of taken_bytes
    memory_utilization: float
    max_model_len: int
    max_model_len_is_set: bool  # by the user: then it is never lowered
    max_num_seqs: int
    chunk_tokens: int  # most tokens of one row in a step
    expected_context: int
    prefix_cache_reserve: float
    kv_cache_memory: int | None = None  # bytes, set by the user
    draft_model_bytes: int = 0
    adapter_bytes: int = 0
    encoder_bytes: int = 0
    communication_bytes: int = 0
    state_bytes: int = 0  # recurrent state of one sequence, in layers without a KV cache
    graph_bytes: int = 0  # captured graphs and the engine process without weights
    weights_how: str = "parameters x bytes of the compute type"  # where weight_bytes comes from
    communication_how: str = ""
    compiled_bytes: int = 0  # products that a CPU library compiles on first use and keeps
    margin_share: float = MARGIN_SHARE


def plan_memory(request: MemoryRequest, activations: Callable[[int], tuple[int, str]]) -> MemoryPlan:
    """Divide the memory of one device.

    `activations(max_model_len)` gives the worst step's workspace and its formula; it may only grow with the length.
    Raises CapacityError, with numbers and ways out, when weights do not fit, when a length or a KV size that was set
    does not fit, or when not even one block does.
    """
    r = request
    budget = int(r.memory_utilization * (r.available_bytes + r.taken_bytes))
    margin = margin_bytes(budget, r.margin_share)
    fixed = r.weight_bytes + r.draft_model_bytes + r.adapter_bytes + r.encoder_bytes
    graphs = r.graph_bytes + r.compiled_bytes
    state = r.state_bytes * r.max_num_seqs
    fixed += state + r.communication_bytes + graphs + margin
    layout = KVLayout(groups=r.groups, num_blocks=1)
    notes: list[str] = []

    def room(length: int) -> int:
        """Bytes KV may take when sequences reach `length`."""
        rest = budget - fixed - activations(length)[0]
        return rest if r.kv_cache_memory is None else min(rest, r.kv_cache_memory)

    def fits(length: int) -> bool:
        return kv_blocks_that_fit(room(length), r.groups) >= layout.max_blocks(length, r.chunk_tokens)

    length = r.max_model_len
    if not fits(length):
        lowered = _longest(length, fits)
        if lowered < 1:
            raise CapacityError(
                "the model leaves no room for a KV cache",
                seen=f"budget {format_bytes(budget)} = {r.memory_utilization:.0%} of "
                f"{format_bytes(r.available_bytes + r.taken_bytes)}",
                expected=f"weights {format_bytes(r.weight_bytes)} + activations {format_bytes(activations(1)[0])} + "
                f"graphs and engine {format_bytes(graphs)} + margin {format_bytes(margin)} + one sequence in "
                f"blocks of {format_bytes(layout.bytes_per_block)}",
                fix="raise memory_utilization (or kv_cache_memory if set), free memory, lower max_num_batched_tokens, "
                "or use a smaller model or dtype",
            )
        if r.max_model_len_is_set:
            needed = (layout.max_blocks(length, r.chunk_tokens) + 1) * layout.bytes_per_block
            raise CapacityError(
                "one sequence of max_model_len does not fit into the KV cache",
                seen=f"max_model_len {length} needs {format_bytes(needed)} of KV",
                expected=f"at most {format_bytes(max(0, room(length)))} beside weights, activations and margin",
                fix=f"set max_model_len to {lowered} or less, or raise memory_utilization",
            )
        notes.append(
            f"max_model_len lowered from {length} to {lowered}: a longer sequence would not fit into the KV cache"
        )
        length = lowered

    possible = kv_blocks_that_fit(room(length), r.groups)
    num_blocks = possible
    workspace, activation_how = activations(length)
    if r.kv_cache_memory is not None:
        if r.kv_cache_memory > budget - fixed - workspace:
            raise CapacityError(
                "kv_cache_memory does not fit",
                seen=format_bytes(r.kv_cache_memory),
                expected=f"at most {format_bytes(budget - fixed - workspace)} of a budget of {format_bytes(budget)}: "
                f"weights {format_bytes(r.weight_bytes)}, activations {format_bytes(workspace)}, margin "
                f"{format_bytes(margin)}",
                fix="lower kv_cache_memory, or raise memory_utilization",
            )
        how = f"kv_cache_memory was set to {format_bytes(r.kv_cache_memory)}"
    else:
        expected = min(r.expected_context, length)
        useful = max(
            layout.max_blocks(length, r.chunk_tokens),
            kv_blocks_useful(
                r.groups,
                max_num_seqs=r.max_num_seqs,
                context_tokens=expected,
                chunk_tokens=r.chunk_tokens,
                reserve=r.prefix_cache_reserve,
            ),
        )
        if useful < possible:
            num_blocks = useful
            how = f"{r.max_num_seqs} sequences x {expected} tokens x (1 + {r.prefix_cache_reserve:g}) for prefixes"
        else:
            how = f"all that weights, activations and margin leave of {format_bytes(budget)}"
            notes.append(
                f"KV holds {possible} blocks; {r.max_num_seqs} sequences of {expected} tokens with their prefix cache "
                f"would use {useful}"
            )
    final = KVLayout(groups=r.groups, num_blocks=num_blocks)
    ledger = MemoryLedger(
        weights=Entry(
            name="weights",
            predicted_bytes=r.weight_bytes,
            measured_bytes=r.weight_bytes if r.weights_in_place else None,
            how=r.weights_how,
        ),
        draft_model=Entry(name="draft_model", predicted_bytes=r.draft_model_bytes),
        adapters=Entry(name="adapters", predicted_bytes=r.adapter_bytes),
        encoder=Entry(name="encoder", predicted_bytes=r.encoder_bytes),
        kv=Entry(
            name="kv",
            predicted_bytes=final.total_bytes,
            how=f"{num_blocks} + 1 blocks of {format_bytes(layout.bytes_per_block)}: {how}",
        ),
        state=Entry(
            name="state",
            predicted_bytes=state,
            how=f"{r.max_num_seqs} sequences x {format_bytes(r.state_bytes)}, at any length",
        ),
        activations=Entry(name="activations", predicted_bytes=workspace, how=activation_how),
        communication=Entry(name="communication", predicted_bytes=r.communication_bytes, how=r.communication_how),
        graphs=Entry(
            name="graphs",
            predicted_bytes=graphs,
            how=f"the process without its weights {format_bytes(r.graph_bytes)}, and what is compiled on first use, at "
            f"most {format_bytes(r.compiled_bytes)}",
        ),
        margin=Entry(
            name="margin",
            predicted_bytes=margin,
            how=f"{r.margin_share:.0%} of the budget, at least {format_bytes(MIN_MARGIN_BYTES)}",
        ),
        device_bytes=r.device_bytes,
        budget_bytes=budget,
    )
    assert ledger.total <= budget
    return MemoryPlan(ledger=ledger, num_blocks=num_blocks, max_model_len=length, notes=tuple(notes))


def _longest(limit: int, fits: Callable[[int], bool]) -> int:
    """Largest length in 0..limit that fits (0 always counts as fitting)."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
