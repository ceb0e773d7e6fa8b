"""What a step should take, from counts and rates alone: before anything has run, and for machines that are not here.

For each part of a step `ms = max(operations / rate, bytes / bandwidth) / share`, where the share of the rate that is
reached depends on the shape (`utilisation`). Parts are added: nothing is taken to overlap.

    linear           2 W t / F against W bytes / B    W weights of a layer on this rank, t its positions
    experts          the same for routed layers; experts read: those that t positions reach, E (1 - (1 - k/E)^t)
    attention        4 seen heads dim / F against cache bytes / B, what each row and position sees once; a chunk's
                     further pairs: 4 pairs heads dim / F; a sliding layer sees at most its window
    logits           2 n V h / F against the head's bytes, and four passes over n rows of float32 logits
    tensor_parallel  two all-reduces a layer, ring: latency + 2 (n - 1) / n * bytes / link
    experts          also two all-to-alls a routed layer: latency + bytes (ep - 1) / ep / link, times the imbalance
    context          attention over context parallel ranks: what its ring takes beyond the work (`context`)
    pipeline         one message to the next stage each
    fixed            launches and host work: a part per step, per layer, per row

Sources: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009; ring all-reduce: P. Patarasu, X. Yuan, J.
Parallel Distrib. Comput. 69(2), 2009; latent attention: DeepSeek-V2, arXiv 2405.04434. Fixed parts on a GPU are fitted
values published with the BLIS simulator.

Not covered: overlap of communication with products, clocks that fall under load, what a row's sampling asks for.
Micro-batches through a pipeline: `step_ms` is one batch through all stages, `interval_ms` how often one can start; the
bubble of `m` batches among `p` stages is (p - 1) / (m + p - 1).
"""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

import msgspec

from paceline.contracts.ports import StepShape, fewest_pairs, prefill_shape
from paceline.contracts.specs import DeviceSpec, LayerSpec, ModelSpec
from paceline.cost.context import Moved, attention_ms
from paceline.cost.estimate import Estimate
from paceline.cost.room import most_tokens
from paceline.cost.transfer import Link
from paceline.cost.utilisation import ATTENTION, CACHE_READ, ELEMENTWISE, cliffs, product_share, share
from paceline.errors import ConfigError, UnsupportedError

LOW, HIGH = 0.5, 2.0  # what a roofline may be off by; other tools report up to twice
LINK_SHARE = 0.75  # of a link's rate that all-reduces reach with large messages (61 to 81 % on eight H100s)
FIXED_MS = {"cpu": (0.2, 0.01, 0.02), "cuda": (0.1, 0.03, 0.004)}  # per step, per layer, per row
ACTIVATION_PASSES = 12  # reads and writes of one position's hidden state in a layer, outside of products
LOGIT_PASSES = 4
NOTHING = Moved(keys=0.0, queries=0.0, outputs=0.0)


class Degrees(msgspec.Struct, frozen=True, kw_only=True):
    """Over how many ranks one replica is divided, `tp * pp * ep * cp` in all. Replicas beside it are not in here.

    With `ep` above 1 each of the `ep` groups has all of attention for its own part of a step's rows, and its part of
    the experts for everybody's.
    """

    tp: int = 1  # matrices
    pp: int = 1  # layers
    ep: int = 1  # experts
    cp: int = 1  # the positions of a step and of the cache

    def __post_init__(self) -> None:
        if min(self.tp, self.pp, self.ep, self.cp) < 1:
            raise ConfigError("a degree of parallelism is below 1", seen=self, expected="1 up")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp * self.ep * self.cp


class StepPrior:
    """A `contracts.ports.CostModel` that learns nothing: one model, on one kind of device, divided one way.

    `weight_bytes`: all weights as stored, over all ranks; None: `dtype_bytes` each. `kv_dtype_bytes` may be a fraction
    (scales counted in). `link`: between ranks, one direction; needed as soon as there are two.
    """

    def __init__(
        self,
        spec: ModelSpec,
        device: DeviceSpec,
        *,
        weight_bytes: float | None = None,
        dtype_bytes: float = 2,
        kv_dtype_bytes: float = 2,
        degrees: Degrees | None = None,
        link: Link | None = None,
        expert_imbalance: float = 1.0,
    ) -> None:
        self.spec, self.device = spec, device
        self.degrees = degrees or Degrees()
        if self.degrees.num_ranks > 1 and link is None:
            raise ConfigError(
                "several ranks and no link between them",
                seen=self.degrees,
                fix="say how fast they talk: link=Link(...)",
            )
        if self.degrees.pp > spec.num_layers:
            raise ConfigError("more stages than layers", seen=self.degrees.pp, expected=f"at most {spec.num_layers}")
        if self.degrees.cp > 1:
            _check_context(spec, self.degrees)
        if not 0.0 < device.gflops < float("inf") or not 0.0 < device.memory_gbps < float("inf"):
            raise ConfigError("the device has no rates", seen=device, fix="measure it, or take them from a table")
        self._link = link or Link(gbps=1.0)
        self._dtype_bytes = dtype_bytes
        self._kv_dtype_bytes = kv_dtype_bytes
        self._imbalance = expert_imbalance
        self._flops = device.gflops * 1e6  # per ms
        self._bytes = device.memory_gbps * 1e6  # per ms
        self._per_weight = dtype_bytes if weight_bytes is None else weight_bytes / spec.num_parameters
        self._cliffs = cliffs(device.kind)
        self._at_cliffs: dict[float, list[float]] = {}  # weights of a product -> its longest ms up to each cliff
        stages = _stages(spec, self.degrees.pp)
        self._kinds = list(dict.fromkeys(kind for stage in stages for kind in stage))
        self._counts = [tuple(stage.get(kind, 0) for kind in self._kinds) for stage in stages]  # [stages][kinds]
        self._matrices = [self._linear_weights(kind) for kind in self._kinds]
        self._asked: StepShape | None = None  # the last step that was asked about, and its layers
        self._layers: list[dict[str, float]] = []

    # --- the port

    def step_ms(self, shape: StepShape) -> float:
        """One step through all stages; a step without rows costs nothing."""
        return sum(self.parts(shape).values()) if shape.num_rows else 0.0

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        """What a chunk takes beyond the fixed part of a step that runs anyway."""
        if num_tokens <= 0:
            return 0.0
        parts = self.parts(prefill_shape(num_tokens, num_cached, sampled=False))
        return sum(ms for name, ms in parts.items() if name != "fixed")

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        return most_tokens(self.step_ms, ms, shape, num_cached, at_most)

    def observe(self, shape: StepShape, ms: float) -> None:
        """Nothing: `StepCost` learns."""

    # --- the parts

    def interval_ms(self, shape: StepShape) -> float:
        """The slowest stage: a pipeline that is kept full ends one such step in every so many ms."""
        if not shape.num_rows:
            return 0.0
        each = [sum(layer.values()) for layer in self._layers_of(shape)]
        stages = [sum(count * ms for count, ms in zip(counts, each, strict=True)) for counts in self._counts]
        stages[-1] += self._head_ms(shape)
        return max(stages) + self._fixed_ms(shape)

    def parts(self, shape: StepShape) -> dict[str, float]:
        """Milliseconds by part, all stages of one step."""
        total = dict.fromkeys(("fixed", "linear", "logits", "attention", "tensor_parallel", "experts", "context"), 0.0)
        for at, layer in enumerate(self._layers_of(shape)):
            count = sum(counts[at] for counts in self._counts)
            for name, ms in layer.items():
                total[name] += count * ms
        total["logits"] = self._head_ms(shape)
        total["fixed"] += self._fixed_ms(shape)
        sent = self._activation_bytes(shape.num_tokens / self.degrees.cp)
        total["pipeline"] = (len(self._counts) - 1) * self._link.ms(sent)
        return total

    def estimate(self, shape: StepShape) -> Estimate:
        ms = self.step_ms(shape)
        rates = f"{self.device.gflops:.4g} GFLOP/s and {self.device.memory_gbps:.3g} GB/s ({self.device.source})"
        return Estimate(
            value=ms, lo=ms * LOW, hi=ms * HIGH, tier="first principles", why=f"counts over {rates}; nothing was timed"
        )

    def _fixed_ms(self, shape: StepShape) -> float:
        per_step, _, per_row = FIXED_MS[self.device.kind]
        return per_step + per_row * shape.num_rows

    def _head_ms(self, shape: StepShape) -> float:
        return self._logits_ms((shape.num_sampled + shape.num_prompt_logits) / (self.degrees.ep * self.degrees.cp))

    def _layers_of(self, shape: StepShape) -> list[dict[str, float]]:
        """Milliseconds by part of one layer of each kind: stages and steps are sums of these. [kinds]"""
        if shape is not self._asked:
            kinds = zip(self._kinds, self._matrices, strict=True)
            self._layers = [self._layer(kind, weights, shape) for kind, weights in kinds]
            self._asked = shape
        return self._layers

    def _layer(self, kind: LayerSpec, weights: float, shape: StepShape) -> dict[str, float]:
        tokens = shape.num_tokens / (self.degrees.ep * self.degrees.cp)  # of this rank, outside of experts
        passes = ACTIVATION_PASSES * self._activation_bytes(tokens) / (ELEMENTWISE * self._bytes)
        work, moved = self._attention(kind, shape)
        ms = {
            "fixed": FIXED_MS[self.device.kind][1],
            "linear": self._product_ms(tokens, weights) + passes,
            "attention": work,
        }
        if self.degrees.cp > 1:
            ms["context"] = attention_ms(work, self.degrees.cp, self._link, moved) - work
        if kind.routed:
            ms["experts"] = self._experts_ms(shape.num_tokens / self.degrees.cp)
        if self.degrees.tp > 1:
            ms["tensor_parallel"] = 2 * self._all_reduce_ms(tokens)
        return ms

    def _product_ms(self, tokens: float, weights: float) -> float:
        """`tokens` rows times `weights` on one rank; never less than what fewer rows take."""
        longest = self._at_cliffs.get(weights)
        if longest is None:
            longest = self._at_cliffs[weights] = [0.0]
            for cliff in self._cliffs:
                longest.append(max(longest[-1], self._one_product_ms(cliff, weights)))
        return max(longest[bisect_left(self._cliffs, tokens)], self._one_product_ms(tokens, weights))

    def _one_product_ms(self, tokens: float, weights: float) -> float:
        work = max(weights * self._per_weight / self._bytes, tokens * (2 * weights / self._flops))
        return work / product_share(self.device.kind, tokens, weights)

    def _linear_weights(self, layer: LayerSpec) -> float:
        """Of one rank: everything in a layer but routed experts."""
        spec, tp = self.spec, self.degrees.tp
        weights = spec.attention_parameters(layer) / tp
        if layer.attention in ("full", "sliding") and tp > spec.num_kv_heads:  # every rank has a KV head of its own
            copies = 1 / spec.num_kv_heads - 1 / tp
            weights += 2 * spec.hidden_size * spec.num_kv_heads * spec.head_dim * copies
        if not layer.routed:
            weights += spec.mlp_parameters(layer) / tp
        elif spec.experts is not None:  # the shared part and the router
            shared = 3 * spec.hidden_size * spec.experts.shared_intermediate_size
            weights += shared / tp + spec.hidden_size * spec.experts.num_experts
        return weights

    def _experts_ms(self, num_tokens: float) -> float:
        experts = self.spec.experts
        assert experts is not None, "a routed layer without experts"
        ep, tp = self.degrees.ep, self.degrees.tp
        one = 3 * self.spec.hidden_size * experts.intermediate_size / tp
        missed: float = (1 - experts.num_active / experts.num_experts) ** num_tokens
        reached = experts.num_experts * (1 - missed)
        sent = num_tokens * experts.num_active / ep  # (position, expert) pairs of this rank
        here = reached / ep
        ms = here * self._product_ms(sent / here, one) * self._imbalance
        if ep > 1:
            moved = self._activation_bytes(num_tokens / ep) * experts.num_active * (ep - 1) / ep
            ms += 2 * self._link.ms(moved)
        return ms

    def _attention(self, layer: LayerSpec, shape: StepShape) -> tuple[float, Moved]:
        """One layer: reading the cache or the arithmetic on it, whichever is longer, and a chunk's further pairs, of
        one rank; and what it is about, in bytes. `ep` groups divide the rows, `cp` ranks positions and cache."""
        spec, rows = self.spec, max(1, shape.num_rows)
        ranks = self.degrees.ep * self.degrees.cp
        if layer.attention == "state":
            assert spec.state is not None, "a state layer without its sizes"
            moved = 2 * rows * spec.state.num_bytes / self.degrees.tp
            return moved / (ELEMENTWISE * self._bytes) / ranks, NOTHING
        tokens, context = shape.num_tokens, shape.context_tokens
        seen, further = context + tokens, fewest_pairs(shape) - context - tokens
        if layer.window is not None:
            seen = min(context, rows * layer.window) + tokens
            further = min(further, tokens * layer.window)
        heads = spec.num_heads / self.degrees.tp
        if layer.attention == "latent":
            assert spec.latent is not None, "a latent layer without its sizes"
            width = spec.latent
            each = 2.0 * (2 * width.kv_rank + width.rope_dim)  # on what is cached
            beyond = 2.0 * (width.nope_dim + width.rope_dim + width.value_dim)  # on heads spelt out
            queries = heads
            kept = float(width.cached_dim)  # one vector for all heads: every rank reads it
            asks, gets = heads * width.cached_dim, heads * width.kv_rank
        else:
            each = beyond = 4.0 * spec.head_dim
            queries = spec.num_heads / spec.num_kv_heads
            kept = 2.0 * ceil(spec.num_kv_heads / self.degrees.tp) * spec.head_dim
            asks = gets = heads * spec.head_dim
        kind = self.device.kind
        rate = heads / self._flops
        keys = seen * kept * self._kv_dtype_bytes
        read = keys / (CACHE_READ[kind] * self._bytes)
        compute = rate * seen * each / share(ATTENTION[kind], queries)
        chunk = rate * further * beyond / share(ATTENTION[kind], tokens / rows / self.degrees.cp)
        by_token = tokens * self._dtype_bytes
        return (max(read, compute) + chunk) / ranks, Moved(keys=keys, queries=asks * by_token, outputs=gets * by_token)

    def _logits_ms(self, num_rows: float) -> float:
        if num_rows <= 0:
            return 0.0
        vocab = self.spec.vocab_size / self.degrees.tp
        passes = LOGIT_PASSES * num_rows * vocab * 4 / (ELEMENTWISE * self._bytes)
        return self._product_ms(num_rows, vocab * self.spec.hidden_size) + passes

    def _all_reduce_ms(self, tokens: float) -> float:
        n = self.degrees.tp
        return self._link.ms(2 * (n - 1) / n * self._activation_bytes(tokens) / LINK_SHARE)

    def _activation_bytes(self, tokens: float) -> float:
        return tokens * self.spec.hidden_size * self._dtype_bytes


def _stages(spec: ModelSpec, num_stages: int) -> list[dict[LayerSpec, int]]:
    """Layers of each stage by kind, as even as they go; the first stages have one more, the last has the head."""
    size, more = divmod(spec.num_layers, num_stages)
    stages: list[dict[LayerSpec, int]] = []
    at = 0
    for index in range(num_stages):
        end = at + size + (index < more)
        kinds: dict[LayerSpec, int] = {}
        for layer in spec.layers[at:end]:
            key = msgspec.structs.replace(layer, rope=_ANY_ROPE)
            kinds[key] = kinds.get(key, 0) + 1
        stages.append(kinds)
        at = end
    return stages


_ANY_ROPE = LayerSpec().rope


def _check_context(spec: ModelSpec, degrees: Degrees) -> None:
    """Raise UnsupportedError where a step's positions cannot be divided, or nobody has said how."""
    if degrees.ep > 1:
        raise UnsupportedError(
            "context parallelism together with expert parallelism is not priced", seen=degrees, fix="leave one at 1"
        )
    if any(layer.attention == "state" for layer in spec.layers):
        raise UnsupportedError(
            "context parallelism needs attention: a recurrent state is computed position by position",
            seen=spec.name,
            fix="leave cp at 1",
        )
