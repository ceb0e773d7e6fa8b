"""The one file that picks concrete classes: a configuration in, an engine out.

    build_core(config)      what computes and decides: core, model, memory plan       (no text)
    build_engine(config)    that, in this process, with a client and the text around it
    spawn_engine(config)    the same core in a child process; returns the client

Start-up goes in named phases, each timed: files, torch, device, weights, memory, kv cache, tokenizer.
Nothing else in the package may import from every side; this file may.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline import hub
from paceline.config import (
    EngineConfig,
    Environment,
    Knobs,
    check_features,
    child_environment,
    read_environment,
    resolve_knobs,
)
from paceline.config.roofline import Roofline
from paceline.contracts.kv import KVLayout, plan_kv_groups
from paceline.contracts.ports import ExecutorCaps
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost.linear import LinearStepCost
from paceline.cost.memory import MemoryPlan, MemoryRequest, format_bytes, plan_memory
from paceline.cost.workspace import (
    activation_bytes,
    compiled_products_bytes,
    fast_attention_bytes,
    tiled_attention_bytes,
    worst_step,
)
from paceline.engine import ChildClient, EngineCore, InProcessClient, KVManager, Scheduler, SchedulerSettings, WallClock
from paceline.engine.child import serve_child
from paceline.phases import OnPhase, Phases
from paceline.text import ChatTemplate, TextPipeline, load_tokenizer

if TYPE_CHECKING:
    from paceline.runtime.worker import Worker
    from paceline.text import TextTokenizer

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Core:
    """An engine without text, and all that was decided while it was built."""

    core: EngineCore
    config: EngineConfig
    files: hub.ModelFiles
    spec: ModelSpec
    device: DeviceSpec
    dtype: str
    knobs: Knobs
    memory: MemoryPlan
    tokenizer: TextTokenizer
    phases: dict[str, float]


@dataclass(frozen=True)
class Engine:
    """An engine with text around it."""

    built: Core
    client: InProcessClient
    pipeline: TextPipeline


def build_engine(
    config: EngineConfig, *, environment: Environment | None = None, on_phase: OnPhase | None = None
) -> Engine:
    """A ready engine in this process. Raises ConfigError, ModelError or CapacityError before anything is served."""
    built = build_core(config, environment=environment, on_phase=on_phase)
    template = ChatTemplate.load(
        built.files, override=_override(config.model.chat_template), special_tokens=built.tokenizer.special_tokens
    )
    pipeline = TextPipeline(built.tokenizer, template, max_model_len=built.memory.max_model_len)
    return Engine(built=built, client=InProcessClient(built.core), pipeline=pipeline)


def spawn_engine(config: EngineConfig, *, start_timeout_s: float = 300.0) -> ChildClient:
    """The engine in a child process, which ends with this one. Raises what its start-up raised."""
    text = msgspec.json.encode(config).decode()
    return ChildClient(
        [sys.executable, "-m", "paceline.assemble", text],
        environment=child_environment(),
        start_timeout_s=start_timeout_s,
    )


def build_core(
    config: EngineConfig, *, environment: Environment | None = None, on_phase: OnPhase | None = None
) -> Core:
    """Everything below the client."""
    environment = environment or read_environment()
    phases = Phases(on_phase)
    with phases("files"):
        files = _find_files(config, environment)
        spec = hub.describe(files)
    with phases("tokenizer"):
        tokenizer = load_tokenizer(config.model.tokenizer or files)
        token_bytes = _bytes_for(tokenizer, spec)
    with phases("torch"):
        from paceline.runtime import device as devices

        kind = devices.choose_device(config.device.device)
        dtype, _ = devices.choose_dtype(config.model.dtype, kind)
        check_features(config, spec, device=kind, dtype=dtype)
    with phases("device"):
        device = _probe(config, kind, dtype)
        knobs = resolve_knobs(config, spec, device, dtype_bytes=DTYPE_BYTES[dtype])
    with phases("weights"):
        worker = _load_weights(config, files, spec, kind, dtype)
    with phases("memory"):
        memory = _plan_memory(config, spec, device, dtype, knobs, worker)
    settings = _settings(config, knobs, memory)
    groups = plan_kv_groups(spec, config.cache.block_size, DTYPE_BYTES[dtype])
    layout = KVLayout(groups=groups, num_blocks=memory.num_blocks, dtype=dtype)
    with phases("kv cache"):
        executor = _executor(worker, layout, settings)
    kv = KVManager(
        layout,
        prefix_caching=config.cache.enable_prefix_caching,
        max_chunk_tokens=settings.max_uncommitted_tokens(executor.caps.max_in_flight),
        model_revision=spec.revision,
    )
    scheduler = Scheduler(
        settings,
        executor.caps,
        kv,
        _step_cost(spec, device, dtype),
        token_bytes=token_bytes,
        eos_token_ids=sorted(i for i in {*spec.eos_token_ids, *tokenizer.eos_token_ids} if 0 <= i < spec.vocab_size),
    )
    core = EngineCore(scheduler, executor, WallClock(), draw_seed=_seed_source(config.model.seed))
    return Core(
        core=core,
        config=config,
        files=files,
        spec=spec,
        device=device,
        dtype=dtype,
        knobs=knobs,
        memory=memory,
        tokenizer=tokenizer,
        phases=phases.seconds,
    )


# --- parts


def _find_files(config: EngineConfig, environment: Environment) -> hub.ModelFiles:
    access = hub.HubAccess(endpoint=environment.hf_endpoint, token=environment.hf_token, offline=environment.hf_offline)
    name = config.model.model
    if config.model.load_format == "dummy" and not name.startswith("dummy:"):
        name = f"dummy:{name}"
    files = hub.resolve(name, environment.home, config.model.revision, access=access)
    wanted = {"gguf": "gguf", "safetensors": "folder"}.get(config.model.load_format)
    if wanted is not None and files.kind != wanted:
        from paceline.errors import ModelError

        raise ModelError(
            f"{name} is not in the format asked for",
            seen=f"{files.path}: {files.kind}",
            expected=f"load_format={config.model.load_format}",
            fix="leave load_format at auto",
        )
    return files


def _bytes_for(tokenizer: TextTokenizer, spec: ModelSpec) -> list[bytes]:
    """One entry for each id the model can draw: checkpoints pad their vocabulary, and such ids add no text."""
    known = list(tokenizer.token_bytes())[: spec.vocab_size]
    return known + [b""] * (spec.vocab_size - len(known))


def _probe(config: EngineConfig, kind: str, dtype: str) -> DeviceSpec:
    from paceline.runtime.device import probe_device, use_threads
    from paceline.runtime.host_allocator import give_back_large_blocks

    num_threads = use_threads(config.device.num_threads)
    if kind == "cpu":
        give_back_large_blocks()
    return probe_device("cuda" if kind == "cuda" else "cpu", dtype, num_threads=num_threads)


def _load_weights(config: EngineConfig, files: hub.ModelFiles, spec: ModelSpec, kind: str, dtype: str) -> Worker:
    from paceline.runtime.device import DTYPES
    from paceline.runtime.loader import open_weights
    from paceline.runtime.worker import Worker

    torch_dtype = DTYPES[dtype]
    weights = open_weights(files, spec, seed=config.model.seed, dtype=torch_dtype)
    return Worker.load(spec, weights, device=kind, dtype=torch_dtype, numerics=config.numerics)


def _plan_memory(
    config: EngineConfig, spec: ModelSpec, device: DeviceSpec, dtype: str, knobs: Knobs, worker: Worker
) -> MemoryPlan:
    """The memory plan from a measured worst step: activations are the larger of formula and measurement."""
    from paceline.runtime.device import DTYPES, device_memory, process_rss
    from paceline.runtime.kernels.dispatch import native_half
    from paceline.runtime.worst_plan import StepLimits

    dtype_bytes = DTYPE_BYTES[dtype]
    kv_tokens = ceil(knobs.max_num_seqs * knobs.expected_context * (1 + knobs.prefix_cache_reserve))
    kv_tokens = max(kv_tokens, knobs.max_model_len)
    limits = StepLimits(
        max_rows=knobs.max_num_seqs,
        max_tokens=knobs.max_num_batched_tokens,
        max_model_len=knobs.max_model_len,
        chunk_tokens=knobs.prefill_chunk_tokens,
        kv_tokens=kv_tokens,
    )
    measured = worker.measure_worst_step(limits, block_size=config.cache.block_size)

    groups = plan_kv_groups(spec, config.cache.block_size, dtype_bytes)
    widened = dtype != "float32" and device.kind == "cpu" and not native_half(DTYPES[dtype])

    def activations(max_model_len: int) -> tuple[int, str]:
        worst = worst_step(
            spec,
            num_tokens=knobs.max_num_batched_tokens,
            num_rows=knobs.max_num_seqs,
            context_tokens=max_model_len,
        )
        if config.numerics == "reference":
            attention = tiled_attention_bytes(spec, worst, len(groups))
        else:
            attention = fast_attention_bytes(spec, worst, dtype_bytes, widened=widened)
        predicted, how = activation_bytes(
            spec, worst, dtype_bytes=dtype_bytes, attention_bytes=attention, widened=widened
        )
        if measured.peak_bytes is not None and measured.peak_bytes > predicted:
            return measured.peak_bytes, f"as measured, above the formula's {format_bytes(predicted)}: {how}"
        return predicted, how

    compiled = device.kind == "cpu" and config.numerics == "fast" and (dtype == "float32" or widened)
    reading = device_memory(device.kind)
    weight_bytes = worker.weight_bytes
    taken = process_rss() if device.kind == "cpu" else weight_bytes
    plan = plan_memory(
        MemoryRequest(
            groups=groups,
            device_bytes=reading.total_bytes,
            available_bytes=reading.available_bytes,
            taken_bytes=taken,
            weight_bytes=weight_bytes,
            weights_in_place=True,
            memory_utilization=knobs.memory_utilization,
            max_model_len=knobs.max_model_len,
            max_model_len_is_set=config.model.max_model_len is not None,
            max_num_seqs=knobs.max_num_seqs,
            chunk_tokens=knobs.prefill_chunk_tokens,
            expected_context=knobs.expected_context,
            prefix_cache_reserve=knobs.prefix_cache_reserve,
            kv_cache_memory=config.cache.kv_cache_memory,
            graph_bytes=max(0, taken - weight_bytes),
            compiled_bytes=compiled_products_bytes(knobs.max_num_batched_tokens) if compiled else 0,
        ),
        activations,
    )
    if measured.peak_bytes is not None:
        ledger = plan.ledger.with_measured(activations=measured.peak_bytes)
        plan = msgspec.structs.replace(plan, ledger=ledger)
    return plan


def _settings(config: EngineConfig, knobs: Knobs, memory: MemoryPlan) -> SchedulerSettings:
    scheduling = config.scheduling
    return SchedulerSettings(
        max_num_seqs=knobs.max_num_seqs,
        max_num_batched_tokens=knobs.max_num_batched_tokens,
        prefill_chunk_tokens=knobs.prefill_chunk_tokens,
        min_prefill_tokens=max(1, knobs.min_prefill_tokens),
        max_model_len=memory.max_model_len,
        policy=scheduling.policy,
        prefill_priority=knobs.prefill_priority,
        max_wait_ms=knobs.max_wait_ms,
        watermark=knobs.watermark,
        preemption="recompute",  # check_features has refused anything else
        batching=scheduling.batching,
        max_waiting_requests=scheduling.max_waiting_requests,
        max_waiting_tokens=scheduling.max_waiting_tokens,
        wait_for_prefix=scheduling.wait_for_prefix,
    )


def _executor(worker: Worker, layout: KVLayout, settings: SchedulerSettings) -> _TorchExecutor:
    from paceline.runtime.executor import build_executor
    from paceline.runtime.worst_plan import StepLimits

    worker.allocate_kv(layout)
    worst_tokens = settings.max_num_seqs - 1 + settings.min_prefill_tokens
    limits = StepLimits(
        max_rows=settings.max_num_seqs,
        max_tokens=max(settings.max_num_batched_tokens, worst_tokens),
        max_model_len=settings.max_model_len,
        chunk_tokens=settings.max_chunk_tokens,
    )
    return build_executor(worker, limits)


def _step_cost(spec: ModelSpec, device: DeviceSpec, dtype: str) -> LinearStepCost:
    """Prices from two measured rates of the device: weights are read once a step, tokens multiplied, contexts read."""
    roof = Roofline(spec, device, DTYPE_BYTES[dtype], DTYPE_BYTES[dtype])
    return LinearStepCost(
        fixed_ms=roof.read_ms,
        per_token_ms=roof.token_ms,
        per_row_ms=0.0,
        per_context_token_ms=roof.kv_bytes(1) / roof.bytes_per_ms,
    )


def _seed_source(seed: int) -> Callable[[], int]:
    """Seeds for requests that bring none: the k-th is a function of the engine's seed and k."""
    counter = itertools.count()

    def draw() -> int:
        text = f"{seed}:{next(counter)}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    return draw


def _override(chat_template: str | None) -> str | Path | None:
    return None if chat_template is None else Path(chat_template)


# --- looking


def find_device(config: EngineConfig) -> tuple[DeviceSpec, str]:
    """The device a configuration would use, measured, and its compute dtype."""
    from paceline.runtime.device import choose_device, choose_dtype

    kind = choose_device(config.device.device)
    dtype, _ = choose_dtype(config.model.dtype, kind)
    return _probe(config, kind, dtype), dtype


def kernel_table(kind: str, dtype: str, numerics: str) -> list[tuple[str, str, str]]:
    """Rows (op, implementation, why) of the kernels that would serve."""
    from paceline.runtime.device import DTYPES
    from paceline.runtime.kernels import explain

    rows = []
    for line in explain(kind, DTYPES[dtype], "reference" if numerics == "reference" else "fast"):
        passed_over = "; ".join(f"not {name}: {why}" for name, why in line.passed_over)
        rows.append((line.op, line.kernel, f"{line.reason}{'; ' + passed_over if passed_over else ''}"))
    return rows


def bench_step(rows: Sequence[int], waiting: int) -> list[dict[str, Any]]:
    """Host microseconds of a step by part, the torch input build included; see `engine.bench.run`."""
    from paceline.engine.bench import run
    from paceline.runtime.input_bench import TorchInputBuild

    return run(rows, waiting, make_build=TorchInputBuild)


# --- the child process


def main(argv: Sequence[str]) -> int:
    """`python -m paceline.assemble CONFIG_JSON ADDRESS`: serve one client; started by `spawn_engine` alone."""
    text, address = argv
    config = msgspec.json.decode(text, type=EngineConfig)

    def info(core: EngineCore) -> dict[str, object]:
        caps: ExecutorCaps = core.executor.caps
        return {"vocab_size": caps.vocab_size, "num_blocks": caps.layout.num_blocks}

    return serve_child(lambda: build_core(config).core, address, info=info)


if TYPE_CHECKING:
    from paceline.runtime.executor import TorchExecutor as _TorchExecutor

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
