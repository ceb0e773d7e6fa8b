"""A configuration in, an engine without text out: `build_core`.

Start-up goes in named phases, each timed: files, tokenizer, torch, device, weights, memory, kv cache.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline import hub
from paceline.assemble.files import find_files
from paceline.assemble.isa import limit_isa
from paceline.assemble.memory import DTYPE_BYTES, plan_engine_memory
from paceline.assemble.step_cost import as_timed, calibration_key, kernels_in_use, start_cost, step_prior, timed_here
from paceline.assemble.weights import find_weight_method
from paceline.config import EngineConfig, Environment, Knobs, check_features, read_environment, resolve_knobs
from paceline.contracts.kv import KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import CalibrationKey, StepPrior
from paceline.cost.memory import MemoryPlan
from paceline.engine import EngineCore, Grammars, KVManager, Scheduler, SchedulerSettings, WallClock
from paceline.engine.journal_file import begin_journal
from paceline.phases import OnPhase, Phases
from paceline.text import load_tokenizer
from paceline.text.grammar import GrammarCompiler

if TYPE_CHECKING:
    from paceline.runtime.executor import TorchExecutor
    from paceline.runtime.worker import Worker
    from paceline.text import TextTokenizer


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
    cost_source: str  # where the prices of steps are from
    cost_key: CalibrationKey
    prior: StepPrior
    weight_bytes: int
    phases: dict[str, float]


def build_core(
    config: EngineConfig,
    *,
    environment: Environment | None = None,
    on_phase: OnPhase | None = None,
    looks_back: bool = True,
) -> Core:
    """Everything below the client. `looks_back` False: the device's rates are those of now, whatever an earlier
    calibration says."""
    environment = environment or read_environment()
    phases = Phases(on_phase)
    with phases("files"):
        files = find_files(config, environment)
        spec = hub.describe(files)
    with phases("tokenizer"):
        tokenizer = load_tokenizer(config.model.tokenizer or files)
        token_bytes = _bytes_for(tokenizer, spec)
    with phases("torch"):
        limit_isa(environment)
        from paceline.runtime import device as devices

        kind = devices.choose_device(config.device.device)
        dtype, _ = devices.choose_dtype(config.model.dtype, kind)
        check_features(config, spec, device=kind, dtype=dtype)
    with phases("device"):
        device = probe(config, kind, dtype)
        if looks_back:
            kernels = kernels_in_use(config, kind, dtype)
            device = as_timed(device, timed_here(environment.home, config, spec, device, dtype, kernels=kernels))
        kv_dtype = config.cache.kv_dtype(dtype)
        held = kv_format(kv_dtype, spec)
        knobs = resolve_knobs(config, spec, device, dtype_bytes=DTYPE_BYTES[dtype], kv=held)
    with phases("weights"):
        worker = _load_weights(config, files, spec, kind, dtype)
    with phases("memory"):
        memory = plan_engine_memory(config, spec, device, dtype, knobs, worker)
    settings = scheduler_settings(config, knobs, memory)
    groups = plan_kv_groups(spec, config.cache.block_size, held.element_bytes, held.scale_bytes)
    layout = KVLayout(groups=groups, num_blocks=memory.num_blocks, dtype=kv_dtype)
    with phases("kv cache"):
        executor = _executor(worker, layout, settings)
    kv = KVManager(
        layout,
        prefix_caching=config.cache.enable_prefix_caching,
        max_chunk_tokens=settings.max_uncommitted_tokens(executor.caps.max_in_flight),
        model_revision=spec.revision,
    )
    cost_key = calibration_key(config, spec, device, dtype, layout, worker)
    prior = step_prior(spec, device, dtype, layout, worker.weight_bytes)
    cost, cost_source = start_cost(environment.home, cost_key, prior)
    eos_token_ids = sorted(i for i in {*spec.eos_token_ids, *tokenizer.eos_token_ids} if 0 <= i < spec.vocab_size)
    scheduler = Scheduler(settings, executor.caps, kv, cost, token_bytes=token_bytes, eos_token_ids=eos_token_ids)
    journal = begin_journal(config.journal, scheduler, cost.prices)
    core = EngineCore(
        scheduler,
        executor,
        WallClock(),
        journal,
        grammars=_grammars(tokenizer, spec.vocab_size, eos_token_ids),
        draw_seed=_seed_source(config.model.seed),
    )
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
        cost_source=cost_source,
        cost_key=cost_key,
        prior=prior,
        weight_bytes=worker.weight_bytes,
        phases=phases.seconds,
    )


# --- parts


def _bytes_for(tokenizer: TextTokenizer, spec: ModelSpec) -> list[bytes]:
    """One entry for each id the model can draw: checkpoints pad their vocabulary, and such ids add no text."""
    known = list(tokenizer.token_bytes())[: spec.vocab_size]
    return known + [b""] * (spec.vocab_size - len(known))


def _grammars(tokenizer: TextTokenizer, vocab_size: int, eos_token_ids: list[int]) -> Grammars:
    """Nothing is loaded for them before the first request with a grammar."""
    compiler = GrammarCompiler.of(tokenizer, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    return Grammars(compiler, vocab_size=vocab_size, eos_token_ids=eos_token_ids)


def probe(config: EngineConfig, kind: str, dtype: str) -> DeviceSpec:
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
    method = find_weight_method(config, files, device=kind, dtype=dtype)
    takes = None if method is None else method.takes
    weights = open_weights(files, spec, seed=config.model.seed, dtype=torch_dtype, keep_blocks=takes)
    return Worker.load(spec, weights, device=kind, dtype=torch_dtype, numerics=config.numerics, weight_method=method)


def scheduler_settings(config: EngineConfig, knobs: Knobs, memory: MemoryPlan) -> SchedulerSettings:
    scheduling = config.scheduling
    return SchedulerSettings(
        max_num_seqs=knobs.max_num_seqs,
        max_num_batched_tokens=knobs.max_num_batched_tokens,
        prefill_chunk_tokens=knobs.prefill_chunk_tokens,
        min_prefill_tokens=max(1, knobs.min_prefill_tokens),
        max_model_len=memory.max_model_len,
        policy=scheduling.policy,
        prefill_priority=knobs.prefill_priority,
        scheduling_mode=knobs.scheduling_mode,
        max_wait_ms=knobs.max_wait_ms,
        watermark=knobs.watermark,
        preemption="recompute",  # check_features has refused anything else
        batching=scheduling.batching,
        max_waiting_requests=scheduling.max_waiting_requests,
        max_waiting_tokens=scheduling.max_waiting_tokens,
        wait_for_prefix=scheduling.wait_for_prefix,
    )


def _executor(worker: Worker, layout: KVLayout, settings: SchedulerSettings) -> TorchExecutor:
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


def _seed_source(seed: int) -> Callable[[], int]:
    """Seeds for requests that bring none: the k-th is a function of the engine's seed and k."""
    counter = itertools.count()

    def draw() -> int:
        text = f"{seed}:{next(counter)}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    return draw
