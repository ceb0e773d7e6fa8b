"""One rank: a device, the model on it, and what it costs to run the largest step.

    worker = Worker.load(spec, open_weights(files, spec), device="cpu", dtype=torch.float32)
    peak = worker.measure_worst_step(limits)         # before the size of the KV cache is decided
    worker.allocate_kv(layout)                       # after
    executor = build_executor(worker, limits)        # executor.py

Each phase is timed. Threads are the process's business: set torch's before loading. Not yet run on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import torch

from paceline.contracts.kv import KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import ModelSpec
from paceline.errors import CapacityError
from paceline.runtime.huge_pages import move_to_huge_pages
from paceline.runtime.input_batch import InputBatch
from paceline.runtime.kernels.dispatch import Numerics
from paceline.runtime.kv_cache import KV_DTYPES, KVCache
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.layers.linear import WeightMethod
from paceline.runtime.model_runner import ModelRunner
from paceline.runtime.models.blocks import Model
from paceline.runtime.models.registry import build_model
from paceline.runtime.models.weights import WeightStream
from paceline.runtime.peak_memory import peak_memory
from paceline.runtime.worst_plan import NUM_BLOCKS, StepLimits, worst_plan


class WorstStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the largest step took."""

    peak_bytes: int | None  # above what was held before; None: this system does not say
    seconds: float
    num_tokens: int
    num_rows: int
    context_tokens: int


@dataclass(slots=True)
class Worker:
    """A loaded model. `phases` maps what was done at start to seconds."""

    spec: ModelSpec
    model: Model
    device: torch.device
    dtype: torch.dtype
    numerics: Numerics
    phases: dict[str, float] = field(default_factory=dict)
    kv_cache: KVCache | None = None

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        weights: WeightStream,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        numerics: Numerics = "fast",
        weight_method: WeightMethod | None = None,
    ) -> Worker:
        """Build the model and fill it from a stream of (checkpoint name, tensor). `weight_method` keeps the weights of
        all layers; None: as floats. Raises ModelError as models do."""
        began = time.perf_counter()
        torch_device = torch.device(device)
        context = BuildContext(dtype=dtype, device=torch_device, numerics=numerics)
        if weight_method is not None:
            context = replace(context, weight_method=lambda _name: weight_method)
        model = build_model(spec, context)
        model.eval()
        built = time.perf_counter()
        model.load_weights(weights)
        if torch_device.type == "cpu":
            move_to_huge_pages(model.packed_tensors())
        phases = {"build": built - began, "load": time.perf_counter() - built}
        return cls(spec, model, torch_device, dtype, numerics, phases)

    @property
    def weight_bytes(self) -> int:
        return self.model.weight_bytes

    def measure_worst_step(self, limits: StepLimits, *, block_size: int = 16, kv_dtype: str | None = None) -> WorstStep:
        """Run the largest step once, on one layer of each kind, and say what it took beyond what was held.

        One row computes a full chunk at the end of the longest context and reports prompt log-probabilities; all other
        rows decode in contexts as long as the cache can hold. All draw with filters and log-probabilities. Layers reuse
        each other's workspace, so that one of each kind has the peak of all of them.
        `kv_dtype`: what the cache will hold; None: the compute type.
        """
        began = time.perf_counter()
        kv_dtype = kv_dtype or str(self.dtype).removeprefix("torch.")
        held = kv_format(kv_dtype, self.spec)
        groups = plan_kv_groups(self.spec, block_size, held.element_bytes, held.scale_bytes)
        layout = KVLayout(groups=groups, num_blocks=NUM_BLOCKS, dtype=kv_dtype)
        cache = self._cache(layout)
        cache.storage.zero_()  # touched now, so that it does not count
        plan = worst_plan(limits, layout)
        previous = self.kv_cache
        self.model.bind_kv_cache(cache)
        with _thinned(self.model), peak_memory(self.device) as peak:
            runner = self._runner(cache, layout, limits)
            step_began = time.perf_counter()
            runner.sample(runner.forward(plan, runner.prepare(plan)), None)
            seconds = time.perf_counter() - step_began
            del runner
        if previous is not None:
            self.model.bind_kv_cache(previous)
        self.phases["measure"] = time.perf_counter() - began
        return WorstStep(
            peak_bytes=peak.num_bytes,
            seconds=seconds,
            num_tokens=plan.num_tokens,
            num_rows=plan.num_rows,
            context_tokens=int(plan.start.sum()),
        )

    def allocate_kv(self, layout: KVLayout) -> KVCache:
        """Take the memory of the whole cache and bind it to the model. Raises CapacityError when it is not there."""
        began = time.perf_counter()
        try:
            self.kv_cache = self._cache(layout)
        except (RuntimeError, MemoryError) as error:
            raise CapacityError(
                "the KV cache could not be allocated",
                seen=f"{layout.total_bytes} bytes for {layout.num_blocks} blocks: {error}",
                fix="lower memory_utilization or kv_cache_memory",
            ) from None
        self.model.bind_kv_cache(self.kv_cache)
        self.phases["allocate_kv"] = time.perf_counter() - began
        return self.kv_cache

    def _cache(self, layout: KVLayout) -> KVCache:
        return KVCache(layout, self.spec, KV_DTYPES[layout.dtype], self.device)

    def runner(self, limits: StepLimits) -> ModelRunner:
        """What runs plans over the allocated cache."""
        assert self.kv_cache is not None, "allocate_kv comes first"
        return self._runner(self.kv_cache, self.kv_cache.layout, limits)

    def _runner(self, cache: KVCache, layout: KVLayout, limits: StepLimits) -> ModelRunner:
        rows = InputBatch(layout, max_rows=limits.max_rows, max_model_len=limits.max_model_len, device=self.device)
        return ModelRunner(self.model, cache, rows, vocab_size=self.spec.vocab_size)


@contextmanager
def _thinned(model: Model) -> Iterator[None]:
    """Only the first layer of each kind runs."""
    blocks, ropes = model.blocks, model.rope_of_layer
    kinds: dict[tuple[str, int | None, int], int] = {}
    for index, layer in enumerate(model.spec.layers):
        kinds.setdefault((layer.attention, layer.window, ropes[index]), index)
    chosen = list(kinds.values())
    model.blocks = type(blocks)(blocks[index] for index in chosen)
    model.rope_of_layer = [ropes[index] for index in chosen]
    try:
        yield
    finally:
        model.blocks, model.rope_of_layer = blocks, ropes
        model.forget_whole()


def describe_phases(phases: Mapping[str, float]) -> str:
    """`build 0.1 s, load 0.9 s`, in order."""
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases.items())
