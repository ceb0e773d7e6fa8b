"""Profiles: `interactive` (default), `batch` and `long-context` derive the options left unset, each with its reason.

The one idea: a profile is a set of targets for the two numbers of `roofline` (milliseconds of a decode step, of a chunk
of prefill), and the knobs are what meets them on this model and this device. A value that was set always wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from paceline.config.roofline import Roofline
from paceline.config.tree import EngineConfig, Profile
from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.errors import ConfigError

MAX_CHUNK = 8192
MIB = 1 << 20


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile aims at. Everything else follows from the model and the device."""

    max_rows: int  # what the host can keep up with
    # Below these a step serves hardly anybody, and rates are more likely measured on a busy machine than true
    min_rows: int
    min_chunk: int  # tokens
    decode_ms: float  # longest decode-only step
    prefill_ms: float  # what one chunk may add to a step
    context: int | None  # tokens a sequence is expected to reach; None = the whole length
    min_prefill_share: float  # of a chunk, that prompts get however many rows decode
    wait_steps: float  # a request may wait this many decode steps for company
    growth_tokens: int  # each running row may grow this much before an admission beside it hurts
    reuse: float  # KV kept for the prefix cache, as a multiple of the running rows' KV (CPU)
    utilization: dict[str, float]  # of memory, by device kind
    prefill_priority: Literal["decode_first", "prefill_first"]
    scheduling_mode: Literal["fixed", "auto"]
    saturate: bool  # rows follow throughput rather than the decode target


GOALS: dict[Profile, Goal] = {
    "interactive": Goal(
        max_rows=256,
        min_rows=4,
        min_chunk=32,
        decode_ms=50.0,
        prefill_ms=100.0,
        context=2048,
        min_prefill_share=0.25,
        wait_steps=0.0,
        growth_tokens=64,
        reuse=0.5,
        utilization={"cpu": 0.6, "cuda": 0.9},
        prefill_priority="decode_first",
        scheduling_mode="auto",
        saturate=False,
    ),
    "batch": Goal(
        max_rows=1024,
        min_rows=16,
        min_chunk=256,
        decode_ms=2000.0,
        prefill_ms=1000.0,
        context=2048,
        min_prefill_share=1.0,
        wait_steps=1.0,
        growth_tokens=32,
        reuse=0.5,
        utilization={"cpu": 0.8, "cuda": 0.92},
        prefill_priority="prefill_first",
        scheduling_mode="fixed",
        saturate=True,
    ),
    "long-context": Goal(
        max_rows=64,
        min_rows=2,
        min_chunk=128,
        decode_ms=200.0,
        prefill_ms=400.0,
        context=None,
        min_prefill_share=0.5,
        wait_steps=0.0,
        growth_tokens=256,
        reuse=1.0,
        utilization={"cpu": 0.8, "cuda": 0.92},
        prefill_priority="decode_first",
        scheduling_mode="fixed",
        saturate=False,
    ),
}


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """One knob's value and where it comes from."""

    name: str
    value: Any
    source: Literal["set", "profile"]
    reason: str


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Every derived option with a value: what the engine is built from, beside the tree."""

    max_model_len: int
    memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk_tokens: int
    min_prefill_tokens: int
    prefill_priority: Literal["decode_first", "prefill_first"]
    scheduling_mode: Literal["fixed", "auto"]
    max_wait_ms: float
    expected_context: int
    prefix_cache_reserve: float
    watermark: float
    derived: tuple[Derived, ...] = ()  # one per field above, in order

    def reason(self, name: str) -> str:
        return next(d.reason for d in self.derived if d.name == name)


def _round_down(value: float, step: int) -> int:
    return int(value // step) * step


def _largest(limit: int, ok: Callable[[int], bool]) -> int:
    """Largest n in 1..limit with ok(n), for an `ok` that once false stays false; 1 when even that is not."""
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ok(middle) else (low, middle - 1)
    return low


class _Resolver:
    """Derives one knob after another; each may use those before it."""

    def __init__(self, config: EngineConfig, spec: ModelSpec, device: DeviceSpec, roof: Roofline) -> None:
        self.config, self.spec, self.device, self.roof = config, spec, device, roof
        self.goal = GOALS[config.profile]
        self.rates = f"{device.gflops:.4g} GFLOPS and {device.memory_gbps:.3g} GB/s ({device.source})"
        self.found: list[Derived] = []

    def knob(self, name: str, explicit: Any, value: Any, reason: str) -> Any:
        if explicit is not None:
            self.found.append(
                Derived(
                    name=name, value=explicit, source="set", reason=f"set; {self.config.profile} would take {value}"
                )
            )
            return explicit
        self.found.append(Derived(name=name, value=value, source="profile", reason=reason))
        return value

    def resolve(self) -> Knobs:
        """Every knob, those that others follow from first. Raises ConfigError where set values exclude each other."""
        c, s, goal = self.config.cache, self.config.scheduling, self.goal
        model_len = self.max_model_len()
        share = goal.utilization[self.device.kind]
        utilization = self.knob(
            "memory_utilization",
            c.memory_utilization,
            share,
            f"{self.config.profile} on {self.device.kind}: {share:.0%} of free memory, the rest for "
            + ("other processes" if self.device.kind == "cpu" else "the driver and other processes"),
        )
        room = max(0, int(utilization * self.device.memory_bytes) - self.roof.weight_bytes)
        context = self.expected_context(model_len)
        rows = self.rows(context, room)
        chunk = self.chunk()
        budget = self.knob(
            "max_num_batched_tokens",
            s.max_num_batched_tokens,
            rows + chunk,
            f"one token for each of {rows} rows and one chunk of {chunk}: decodes are never cut",
        )
        if budget < rows:
            raise ConfigError(
                "max_num_batched_tokens is smaller than max_num_seqs: not every running sequence could have its token",
                seen=f"{budget} < {rows}",
                fix=f"raise max_num_batched_tokens to {rows} or lower max_num_seqs to {budget}",
            )
        if chunk > budget:
            if s.prefill_chunk_tokens is not None:
                raise ConfigError(
                    "prefill_chunk_tokens is larger than a step",
                    seen=f"{chunk} > max_num_batched_tokens = {budget}",
                    fix=f"lower prefill_chunk_tokens to {budget} or raise max_num_batched_tokens",
                )
            chunk = budget
            self.found[-2] = Derived(
                name="prefill_chunk_tokens",
                value=chunk,
                source="profile",
                reason=f"cut to max_num_batched_tokens = {budget}, which was set",
            )
        priority = self.knob(
            "prefill_priority",
            s.prefill_priority,
            wanted := "decode_first" if s.scheduling_mode == "auto" else goal.prefill_priority,
            "running decodes keep their pace"
            if wanted == "decode_first"
            else "full rows sooner: throughput counts, pace does not",
        )
        mode = self.mode(priority)
        minimum = self.min_prefill(chunk, budget, rows, by_targets=mode == "auto")
        step_ms = self.roof.decode_ms(rows, max(1, context // 2))
        wait = round(min(100.0, goal.wait_steps * step_ms), 1)
        wait = self.knob(
            "max_wait_ms",
            s.max_wait_ms,
            wait,
            f"{goal.wait_steps:g} decode steps of {step_ms:.1f} ms, at most 100 ms"
            if goal.wait_steps
            else "nobody waits for company",
        )
        reserve = self.reserve(rows, context, room)
        return Knobs(
            max_model_len=model_len,
            memory_utilization=utilization,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            prefill_chunk_tokens=chunk,
            min_prefill_tokens=minimum,
            prefill_priority=priority,
            scheduling_mode=mode,
            max_wait_ms=wait,
            expected_context=context,
            prefix_cache_reserve=reserve,
            watermark=self.watermark(rows, context, reserve, room),
            derived=tuple(self.found),
        )

    def max_model_len(self) -> int:
        own, explicit = self.spec.max_model_len, self.config.model.max_model_len
        if explicit is not None and explicit > own:
            raise ConfigError(
                "max_model_len is longer than the model was made for",
                seen=explicit,
                expected=f"at most {own}, from the model's configuration",
                fix="lower it; positions the model never saw give wrong text, not longer text",
            )
        return int(self.knob("max_model_len", explicit, own, f"the model's own limit of {own} tokens"))

    def expected_context(self, model_len: int) -> int:
        """Tokens that most sequences stay below: what memory is planned for."""
        wanted = self.goal.context
        if wanted is None:
            value, reason = model_len, f"every sequence may use the whole length of {model_len}"
        else:
            value = min(wanted, model_len)
            reason = f"most requests end below {wanted} tokens; the length limit is {model_len}"
        explicit = self.config.cache.expected_context
        if explicit is not None and explicit > model_len:
            raise ConfigError(
                "expected_context is longer than any sequence can be",
                seen=explicit,
                expected=f"at most max_model_len = {model_len}",
            )
        return int(self.knob("expected_context", explicit, value, reason))

    def rows(self, context: int, room: int) -> int:
        """Sequences that run at once: as many as a decode step carries within the goal. `room`: bytes for KV."""
        roof, goal = self.roof, self.goal
        half = max(1, context // 2)  # a running sequence is on average half-way
        limit_ms = max(goal.decode_ms, 1.5 * roof.decode_ms(1, half))
        by_time = _largest(goal.max_rows, lambda n: roof.decode_ms(n, half) <= limit_ms)
        by_memory = max(1, room // max(1, roof.kv_bytes(context)))
        if by_time >= goal.min_rows:
            pace = f"a decode step of {roof.decode_ms(by_time, half):.3g} ms stays within {limit_ms:.0f} ms"
        else:
            pace = (
                f"{limit_ms:.0f} ms allow {by_time}; {goal.min_rows} at least, in {goal.decode_ms:.0f} ms or not: with "
                f"fewer most requests would wait, and a rate measured while the machine was busy is too low"
            )
        choices = {
            pace: max(by_time, goal.min_rows),
            f"{room / MIB:.0f} MiB hold this many sequences of {context} tokens": by_memory,
        }
        if goal.saturate:
            choices[f"throughput stops growing at {roof.free_rows} rows; four times that keeps them filled"] = max(
                64, 4 * roof.free_rows
            )
        budget = self.config.scheduling.max_num_batched_tokens
        if budget is not None:
            choices[f"max_num_batched_tokens was set to {budget}"] = budget
        why = min(choices, key=lambda text: choices[text])
        value = choices[why]
        value = _round_down(value, 8) if value >= 8 else value
        reason = f"{why}; {self.rates}; {roof.token_ms:.3g} ms per token, weights read in {roof.read_ms:.3g} ms"
        return int(self.knob("max_num_seqs", self.config.scheduling.max_num_seqs, value, reason))

    def chunk(self) -> int:
        """Prompt tokens of one step: what the goal's time is worth, in whole blocks."""
        roof, goal, block = self.roof, self.goal, self.config.cache.block_size
        wanted = goal.prefill_ms / roof.token_ms
        least = max(2 * block, 2 * roof.free_rows, goal.min_chunk)
        value = min(MAX_CHUNK, max(wanted, least))
        value = max(block, _round_down(value, block))
        if wanted >= least:
            reason = (
                f"{goal.prefill_ms:.0f} ms * {self.device.gflops:.4g} GFLOPS / (2 * {roof.matmul_weights / 1e6:.1f} M "
                f"weights) = {wanted:.0f} tokens, in whole blocks of {block}, at most {MAX_CHUNK}"
            )
        else:
            why = (
                "a prompt takes too many steps, and a rate measured while the machine was busy is too low"
                if least == goal.min_chunk
                else "a step just re-reads weights"
            )
            reason = (
                f"{goal.prefill_ms:.0f} ms allow {wanted:.0f} tokens; below {least} {why}, "
                f"so a chunk takes {roof.prefill_ms(value):.0f} ms"
            )
        return int(self.knob("prefill_chunk_tokens", self.config.scheduling.prefill_chunk_tokens, value, reason))

    def min_prefill(self, chunk: int, budget: int, rows: int, *, by_targets: bool) -> int:
        """Prompt tokens that a step has room for even when all `rows` decode; `budget`: positions of a step.
        `by_targets`: targets say how many, and more would make rows late that keep theirs."""
        share, room = self.goal.min_prefill_share, budget - rows + 1  # beside every other row's token
        value = max(1, int(chunk * share))
        reason = f"{share:.0%} of a chunk of {chunk}: prompts move even when every row decodes"
        if by_targets:
            value, reason = 1, "with scheduling_mode=auto the targets of the rows and of the prompts say how many"
        if value > room:
            value, reason = room, f"what a step of {budget} tokens holds beside {rows - 1} decoding rows"
        explicit = self.config.scheduling.min_prefill_tokens
        if explicit is not None and explicit > room:
            raise ConfigError(
                "min_prefill_tokens and the other rows' tokens are more than a step",
                seen=f"{explicit} + {rows - 1} > max_num_batched_tokens = {budget}",
                fix=f"lower min_prefill_tokens to at most {room}, lower max_num_seqs or raise max_num_batched_tokens",
            )
        return int(self.knob("min_prefill_tokens", explicit, value, reason))

    def mode(self, prefill_priority: str) -> Any:
        """Whether targets and prices decide what a step takes. Raises ConfigError where that was set beside what it
        would decide."""
        s, value = self.config.scheduling, self.goal.scheduling_mode
        reason = "requests are led to the latency targets of their class of service; without any this is fixed"
        if value == "fixed":
            first = "every prompt in its turn, however long," if self.config.profile == "long-context" else "throughput"
            reason = f"{first} comes first; set it to auto where latency targets do"
        given = [f"{n}={v}" for n, v in (("batching", s.batching), ("prefill_priority", prefill_priority))]
        if s.batching != "continuous" or prefill_priority != "decode_first":
            value, reason = "fixed", f"{' and '.join(given)} say who is served first"
            if s.scheduling_mode == "auto":
                raise ConfigError(
                    "scheduling_mode=auto decides by itself who is served first",
                    seen=", ".join(given),
                    expected="batching=continuous and prefill_priority=decode_first",
                    fix="leave scheduling_mode out, or set the other two so",
                )
        return self.knob("scheduling_mode", s.scheduling_mode, value, reason)

    def reserve(self, rows: int, context: int, room: int) -> float:
        value = self.goal.reuse
        if not self.config.cache.enable_prefix_caching:
            value, reason = 0.0, "prefix caching is off"
        elif self.device.kind == "cuda":
            running = rows * self.roof.kv_bytes(context)
            value = round(max(value, room / running - 1), 2)
            reason = f"all {room / MIB:.0f} MiB that weights leave, beyond {running / MIB:.0f} MiB for running rows"
        else:
            reason = f"{value:g} times the running sequences' KV; more would take memory from other processes"
        return float(self.knob("prefix_cache_reserve", self.config.cache.prefix_cache_reserve, value, reason))

    def watermark(self, rows: int, context: int, reserve: float, room: int) -> float:
        growth = self.goal.growth_tokens
        target = rows * self.roof.kv_bytes(context) * (1 + reserve)
        target = max(1.0, min(float(room), target))
        value = round(min(0.1, rows * self.roof.kv_bytes(min(growth, context)) / target), 4)
        return float(
            self.knob(
                "watermark",
                self.config.cache.watermark,
                value,
                f"{rows} rows may grow {growth} tokens each in {target / MIB:.0f} MiB of KV, at most 10 %",
            )
        )


def resolve_knobs(
    config: EngineConfig, spec: ModelSpec, device: DeviceSpec, *, dtype_bytes: int, kv: KVFormat | None = None
) -> Knobs:
    """Every derived option of `config` for this model on this device.

    `dtype_bytes` is the size of the resolved compute type, `kv` what the KV cache holds (None: that type).
    Raises ConfigError when values that were set contradict each other or the model.
    """
    kv = kv or KVFormat(dtype_bytes)
    roof = Roofline(spec, device, dtype_bytes, kv.element_bytes, kv.scale_bytes)
    return _Resolver(config, spec, device, roof).resolve()
