"""What one rank of a sharded model holds: its weights in bytes, by part, and a `ModelSpec` of its own.

The one idea: a rank's share is itself a model with fewer heads, layers and experts. So ledger, KV groups and workspace
formulas need to know nothing about ranks.

    tensor parallel    heads, KV heads (copied where there are fewer than ranks), MLP widths and vocabulary are divided;
                       norms, routers and what a latent model compresses with are not
    pipeline parallel  a stage has its run of layers; the first has the embedding, the last the final norm and the head
    expert parallel    `ep` groups of ranks, each with all of attention for its own sequences and a part of the
                       experts for everybody's; within a group experts are divided by width, as an MLP

Not covered: a vocabulary or a width that a framework pads, replicas of busy experts.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from paceline.contracts.kv import ceil_div
from paceline.contracts.specs import ModelSpec
from paceline.cost.memory import format_bytes
from paceline.errors import UnsupportedError

PLAIN_BYTES = 2  # embeddings, head, norms and routers stay 16-bit in every format


class WeightFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the matrices of layers are stored, scales included."""

    name: str
    bytes_per_weight: float
    about: str
    experts_only: bool = False  # attention and dense MLPs stay 16-bit


FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat(name="bf16", bytes_per_weight=2.0, about="16-bit floats"),
        WeightFormat(name="fp8", bytes_per_weight=1 + 4 / 128**2, about="8-bit floats, a 4-byte scale per 128 x 128"),
        WeightFormat(name="int8", bytes_per_weight=1 + 2 / 4096, about="8 bits, a 2-byte scale per row of about 4,096"),
        WeightFormat(name="int4", bytes_per_weight=0.5 + 2.5 / 128, about="AWQ or GPTQ, groups of 128: scale and zero"),
        WeightFormat(name="nvfp4", bytes_per_weight=0.5 + 1 / 16, about="4-bit floats, an 8-bit scale per 16"),
        WeightFormat(
            name="mxfp4",
            bytes_per_weight=0.5 + 1 / 32,
            about="experts in 4-bit floats, an 8-bit scale per 32",
            experts_only=True,
        ),
    )
}


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one pipeline stage."""

    spec: ModelSpec  # what it computes with; the vocabulary is whole, since logits are gathered
    parts: tuple[tuple[str, int, float], ...]  # (part, weights, bytes)

    @property
    def weight_bytes(self) -> int:
        return round(sum(num_bytes for _, _, num_bytes in self.parts))

    @property
    def how(self) -> str:
        shown = ", ".join(f"{name} {format_bytes(num_bytes)}" for name, _, num_bytes in self.parts if num_bytes)
        return f"sum over matrices: {shown}"


def check_divides(spec: ModelSpec, *, tp: int, pp: int, ep: int) -> None:
    """Raise UnsupportedError, with the reason, where a model cannot be divided so."""
    x = spec.experts
    wrong = ""
    if spec.num_heads % tp:
        wrong = f"{spec.num_heads} heads do not divide by tp = {tp}"
    elif spec.latent is None and spec.num_kv_heads % tp and tp % spec.num_kv_heads:
        wrong = f"{spec.num_kv_heads} KV heads can be neither divided nor copied evenly over tp = {tp}"
    elif any(not layer.routed for layer in spec.layers) and spec.intermediate_size % tp:
        wrong = f"an MLP of {spec.intermediate_size} does not divide by tp = {tp}"
    elif pp > spec.num_layers:
        wrong = f"{spec.num_layers} layers are fewer than pp = {pp} stages"
    elif ep > 1 and x is None:
        wrong = "there are no experts to divide"
    elif x is not None and ep > 1 and x.num_experts % ep:
        wrong = f"{x.num_experts} experts do not divide by ep = {ep}"
    elif x is not None and (x.intermediate_size % tp or x.shared_intermediate_size % tp):
        wrong = f"experts of {x.intermediate_size} do not divide by tp = {tp}"
    if wrong:
        raise UnsupportedError(f"{spec.name} cannot be divided: {wrong}", seen=f"tp {tp}, pp {pp}, ep {ep}")


def stage_layers(num_layers: int, pp: int, stage: int) -> range:
    """Layers of a stage: equal runs; the rest goes one each to the first stages."""
    least, more = divmod(num_layers, pp)
    begin = stage * least + min(stage, more)
    return range(begin, begin + least + (stage < more))


def rank_share(
    spec: ModelSpec, *, tp: int = 1, pp: int = 1, ep: int = 1, stage: int = 0, weights: str = "bf16"
) -> RankShare:
    """What each rank of `stage` holds with weights in a format of `FORMATS`.

    Raises UnsupportedError as `check_divides`.
    """
    check_divides(spec, tp=tp, pp=pp, ep=ep)
    own = stage_layers(spec.num_layers, pp, stage)
    share = rank_spec(spec, tp=tp, ep=ep, layers=own)
    stored = FORMATS[weights]
    dense_bytes = PLAIN_BYTES if stored.experts_only else stored.bytes_per_weight
    attention = mlp = experts = routers = 0
    for layer, count in Counter(share.layers).items():
        attention += count * share.attention_parameters(layer)
        if layer.routed:
            router = spec.hidden_size * share.experts.num_experts if share.experts is not None else 0
            experts += count * (share.mlp_parameters(layer) - router)
            routers += count * spec.hidden_size * (0 if spec.experts is None else spec.experts.num_experts)
        else:
            mlp += count * share.mlp_parameters(layer)
    table = ceil_div(spec.vocab_size, tp) * spec.hidden_size
    first, last = stage == 0, stage == pp - 1
    tables = first + (last and not (spec.tie_word_embeddings and first))
    norms = (2 * len(own) + last) * spec.hidden_size
    parts = (
        ("attention", attention, attention * dense_bytes),
        ("mlp", mlp, mlp * dense_bytes),
        ("experts", experts, experts * stored.bytes_per_weight),
        ("embedding and head", tables * table, tables * table * PLAIN_BYTES),
        ("norms and routers", norms + routers, (norms + routers) * PLAIN_BYTES),
    )
    return RankShare(spec=share, parts=tuple((name, count, float(size)) for name, count, size in parts))


def rank_spec(spec: ModelSpec, *, tp: int, ep: int, layers: range) -> ModelSpec:
    """The model that one rank computes. A token of its own group brings it as many experts' work as in one whole: other
    groups send as much as this one sends away."""
    experts = spec.experts
    if experts is not None:
        experts = msgspec.structs.replace(
            experts,
            num_experts=experts.num_experts // ep,
            intermediate_size=experts.intermediate_size // tp,
            shared_intermediate_size=ceil_div(experts.shared_intermediate_size, tp),
        )
    state = spec.state
    if state is not None:
        state = msgspec.structs.replace(
            state, num_bytes=ceil_div(state.num_bytes, tp), num_parameters=ceil_div(state.num_parameters, tp)
        )
    return msgspec.structs.replace(
        spec,
        num_heads=spec.num_heads // tp,
        num_kv_heads=ceil_div(spec.num_kv_heads, tp),
        intermediate_size=ceil_div(spec.intermediate_size, tp),
        layers=tuple(spec.layers[i] for i in layers),
        experts=experts,
        state=state,
        weight_bytes=0,
    )
