"""The memory of one rank of a layout, through the ledger that engines start with (`cost.memory.plan_memory`).

The fullest rank counts: the stage with most weights. What `resolve_knobs` derives for an engine is derived here too, so
that a plan and the engine that follows it reach the same verdict from the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulingConfig, resolve_knobs
from paceline.config.profiles import GOALS
from paceline.contracts.kv import KVFormat, plan_kv_groups
from paceline.contracts.specs import ModelSpec
from paceline.cost.memory import MIB, MemoryPlan, MemoryRequest, plan_memory
from paceline.cost.shards import RankShare, rank_share
from paceline.cost.workspace import compiled_products_bytes, step_workspace
from paceline.errors import CapacityError
from paceline.planner.capacity import MAX_SEQS, Fit, sequences_that_fit
from paceline.planner.layout import Layout
from paceline.planner.question import Question
from paceline.planner.traffic import Holding, holding

# Buffers of collectives by group size, as AIConfigurator counts them at 095f58a5
COMMUNICATION_BYTES = {1: 0, 2: 342 * MIB, 4: 392 * MIB}
MOST_COMMUNICATION = 392 * MIB
FEW_ROWS = 8  # of a group: where the search for more begins
EXPECTED_SHARE = 0.95  # of running sequences are at most `expected_context` long


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's ledger, and how many sequences it holds."""

    plan: MemoryPlan
    share: RankShare
    fit: Fit  # of one attention group
    seats: int  # rows a replica may run: over all its expert groups
    config: EngineConfig  # of the engine the ledger is for


def serve_config(question: Question, *, rows: int, chunk: int) -> EngineConfig:
    """The engine's options, as the planned configuration sets them. `rows` of one attention group."""
    return EngineConfig(
        profile=question.profile,
        model=ModelConfig(model=question.serve_name or question.spec.name, max_model_len=question.max_model_len),
        cache=CacheConfig(
            block_size=question.kept.block_size,
            kv_cache_dtype=question.kept.kv_cache_dtype,  # type: ignore[arg-type]
            expected_context=expected_context(question),
        ),
        scheduling=SchedulingConfig(max_num_seqs=rows, max_num_batched_tokens=rows + chunk, prefill_chunk_tokens=chunk),
    )


def expected_context(question: Question) -> int:
    """Tokens that most running sequences stay below, in whole blocks."""
    block = question.kept.block_size
    wanted = math.ceil(question.traffic.context_quantile(EXPECTED_SHARE) / block) * block
    return min(wanted, question.max_model_len)


def rank_memory(question: Question, layout: Layout, *, chunk: int, rows: int | None = None) -> RankMemory:
    """The ledger with room for as many rows as fit, or for `rows` of a replica.

    Raises CapacityError when weights or one sequence do not fit, UnsupportedError when the model cannot be so divided.
    """
    share = fullest_share(question, layout)
    groups = layout.degrees.ep
    held = holding(question.traffic, plan_kv_groups(share.spec, question.kept.block_size, 1), chunk)
    if rows is not None:
        per_group = max(1, -(-rows // groups))
        plan, config = _plan(question, layout, share, rows=per_group, chunk=chunk)
        return _with_fit(question, layout, share, held, plan, config, per_group)

    def fitting(per_group: int) -> RankMemory:
        plan, config = _plan(question, layout, share, rows=per_group, chunk=chunk, fill=True)
        return _with_fit(question, layout, share, held, plan, config, per_group)

    limit = MAX_SEQS // groups
    return fitting(_most_rows(fitting, limit))


def _most_rows(fitting: Callable[[int], RankMemory], limit: int) -> int:
    """The most rows that fit beside the workspace of as many rows: workspace grows with rows in proportion, so that the
    rows that fit lie on a straight line. Raises CapacityError when one row does not fit."""
    try:
        few, fit_few = FEW_ROWS, fitting(FEW_ROWS).fit.num_seqs
    except CapacityError:
        few, fit_few = 1, fitting(1).fit.num_seqs
    many = min(limit, fit_few)
    if many <= few:
        return max(1, many)
    try:
        fit_many = fitting(many).fit.num_seqs
    except CapacityError:
        fit_many = 0
    if fit_many >= many:
        return many
    slope = (fit_many - fit_few) / (many - few)
    rows = max(few, math.floor((fit_few - slope * few) / (1 - slope)))
    while rows > few:
        try:
            if fitting(rows).fit.num_seqs >= rows:
                break
        except CapacityError:
            pass
        rows = max(few, rows * 15 // 16)
    return rows


def fullest_share(question: Question, layout: Layout) -> RankShare:
    """Weights of the rank that holds most."""
    d, kept = layout.degrees, question.kept
    stages = sorted({0, d.pp - 1})
    shares = [
        rank_share(question.spec, tp=d.tp, pp=d.pp, ep=d.ep, stage=stage, weights=kept.weights) for stage in stages
    ]
    return max(shares, key=lambda share: share.weight_bytes)


def _plan(
    question: Question, layout: Layout, share: RankShare, *, rows: int, chunk: int, fill: bool = False
) -> tuple[MemoryPlan, EngineConfig]:
    """`fill`: the cache takes all that is left, to see how much that is."""
    kept, room, d = question.kept, question.memory, layout.degrees
    config = serve_config(question, rows=rows, chunk=chunk)
    # What an engine would derive; of a full cache only how much memory may be used
    utilization, reserve = GOALS[question.profile].utilization[question.card.spec.kind], float(MAX_SEQS)
    if not fill:
        device = msgspec.structs.replace(question.card.spec, memory_bytes=room.device_bytes)
        knobs = resolve_knobs(config, share.spec, device, dtype_bytes=kept.dtype_bytes, kv=kept.kv)
        utilization, reserve = knobs.memory_utilization, knobs.prefix_cache_reserve
    groups = plan_kv_groups(share.spec, kept.block_size, kept.kv.element_bytes, kept.kv.scale_bytes)
    step_rows = -(-rows // d.pp)  # of a micro-batch
    stored = kept.stored_bytes if d.num_ranks == 1 else None
    largest = max(d.tp, d.ep)
    request = MemoryRequest(
        groups=groups,
        device_bytes=room.device_bytes,
        available_bytes=room.available_bytes,
        taken_bytes=room.taken_bytes,
        weight_bytes=share.weight_bytes if stored is None else stored,
        weights_how=share.how if stored is None else "in the form that kernels read",
        weights_in_place=False,
        memory_utilization=utilization,
        max_model_len=question.max_model_len,
        max_model_len_is_set=True,
        max_num_seqs=rows,
        chunk_tokens=chunk,
        expected_context=expected_context(question),
        prefix_cache_reserve=reserve,
        communication_bytes=COMMUNICATION_BYTES.get(largest, MOST_COMMUNICATION),
        communication_how=f"buffers of a group of {largest}, a published figure",
        state_bytes=share.spec.state_bytes,
        graph_bytes=room.engine_bytes,
        compiled_bytes=compiled_products_bytes(rows + chunk) if room.compiles else 0,
    )
    activations = step_workspace(
        share.spec,
        num_tokens=step_rows + chunk,
        num_rows=step_rows,
        dtype_bytes=kept.dtype_bytes,
        num_groups=len(groups),
        reference=kept.reference,
        widened=kept.widened,
    )
    return plan_memory(request, activations), config


def _with_fit(
    question: Question,
    layout: Layout,
    share: RankShare,
    held: Holding,
    plan: MemoryPlan,
    config: EngineConfig,
    per_group: int,
) -> RankMemory:
    fit = sequences_that_fit(held, plan.num_blocks, risk=question.overflow_risk)
    seats = min(fit.num_seqs, per_group) * layout.degrees.ep
    return RankMemory(plan=plan, share=share, fit=fit, seats=seats, config=config)


def kv_bytes_per_token(spec: ModelSpec, kv: KVFormat) -> int:
    """What one more token adds to a sequence that is longer than every window, over all layers."""
    longest = 1 + max((layer.window or 0 for layer in spec.layers), default=0)
    return kv.sequence_bytes(spec, longest + 1) - kv.sequence_bytes(spec, longest)
