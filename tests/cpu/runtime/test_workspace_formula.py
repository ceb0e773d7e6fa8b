"""The ledger's activations: the formula is an upper bound of what the worst step really takes."""

import json
import subprocess
import sys
import tracemalloc
from ctypes import byref

import msgspec
import pytest
import torch
from tests.fakes.server_process import ROOT
from tests.pure.config.specs import GEMMA_270M, SMOLLM2

from paceline.contracts.kv import KVLayout, ceil_div, plan_kv_groups
from paceline.contracts.request import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from paceline.cost import workspace
from paceline.cost.workspace import activation_bytes, fast_attention_bytes, tiled_attention_bytes, worst_step
from paceline.runtime import model_runner
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.torch_cpu import plan
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.loader.dummy import dummy_weights
from paceline.runtime.logprobs import report
from paceline.runtime.worker import Worker
from paceline.runtime.worst_plan import StepLimits

LLAMA = msgspec.structs.replace(SMOLLM2, layers=SMOLLM2.layers[:2], vocab_size=16384)
GEMMA3 = msgspec.structs.replace(GEMMA_270M, layers=GEMMA_270M.layers[4:6], vocab_size=16384, qk_norm=True)
GEMMA2 = msgspec.structs.replace(GEMMA3, family="gemma2", attention_softcap=50.0, final_softcap=30.0, qk_norm=False)


def test_the_formula_knows_the_sizes_that_the_code_works_in():
    """The ledger imports no torch, so it repeats them."""
    assert workspace.GATHER_ELEMENTS == plan.GATHER_ELEMENTS
    assert workspace.MASKED_QUERIES == plan.MASKED_QUERIES
    assert workspace.PROMPT_LOGITS == model_runner.PROMPT_SLICE


SPECS = {"llama": LLAMA, "gemma2": GEMMA2, "gemma3": GEMMA3}
KINDS = ("fast", "reference", "int8", "bf16")
LIMITS = StepLimits(max_rows=24, max_tokens=280, max_model_len=2048, chunk_tokens=256)


def measure_all() -> dict[str, int | None]:
    """Peak of each worst step, in this process."""
    found = {}
    for name, spec in SPECS.items():
        for kind in KINDS:
            if can_run(kind):
                found[f"{name}-{kind}"] = load(spec, kind).measure_worst_step(LIMITS, block_size=16).peak_bytes
    return found


def can_run(kind):
    if kind == "bf16":
        return not native.why_not() and native.multiplies_bf16()
    return kind != "int8" or not native.why_not()


def load(spec, kind):
    method = None
    if kind == "bf16":
        from paceline.runtime.quant.bf16 import Bf16Activations

        method = Bf16Activations()
    if kind == "int8":
        from paceline.runtime.quant.int8 import Int8Activations

        method = Int8Activations(rounds=True)
    weights = dummy_weights(spec, seed=0, dtype=torch.float32)
    numerics = "reference" if kind == "reference" else "fast"
    return Worker.load(spec, weights, device="cpu", dtype=torch.float32, numerics=numerics, weight_method=method)


@pytest.fixture(scope="module")
def measured():
    """A process of its own, as an engine's is: in one that ran other tests, what they free meanwhile hides a peak."""
    program = f"import json, {__name__} as me; print(json.dumps(me.measure_all()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPECS)
def test_the_worst_step_takes_no_more_than_the_formula_says(measured, name, kind):
    spec, peak = SPECS[name], measured.get(f"{name}-{kind}")
    if peak is None:
        pytest.skip("no kernel for it here, or this system does not say how much memory a step took")
    step = worst_step(spec, num_tokens=280, num_rows=24, context_tokens=2048)
    if kind != "reference":
        attention = fast_attention_bytes(spec, step, 4)
    else:
        attention = tiled_attention_bytes(spec, step, len(plan_kv_groups(spec, 16, 4)))
    predicted, how = activation_bytes(spec, step, dtype_bytes=4, attention_bytes=attention)
    assert peak <= predicted, how
    assert peak > predicted / 6, "so loose a bound is no prediction"


@pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
@pytest.mark.parametrize("name", ["as it is", "a narrow mlp"])
def test_rounded_activations_are_within_the_formula(name):
    """What all blocks in one call hold at once: the residual stream, and their scratch memory with rounded rows."""
    spec = LLAMA if name == "as it is" else msgspec.structs.replace(LLAMA, intermediate_size=32)
    scratch = {}
    for kind in ("fast", "int8"):
        worker = load(spec, kind)
        worker.allocate_kv(KVLayout(groups=plan_kv_groups(spec, 16, 4), num_blocks=4, dtype="float32"))
        decoder = worker.model._find_whole()
        scratch[kind] = 4 * native.library().paceline_cpu_scratch_size(byref(decoder._decoder), 240)
    widest = max(spec.hidden_size, spec.intermediate_size)
    row = widest * 5 // 4  # a scale and a sum for each 32 codes; rows or blocks of them to whole cache lines
    assert 240 * row <= scratch["int8"] - scratch["fast"] <= 240 * ceil_div(row, 64) * 64
    step = worst_step(spec, num_tokens=240, num_rows=24, context_tokens=2048)
    step = msgspec.structs.replace(step, num_logit_rows=0, logprobs=False)
    predicted, _ = activation_bytes(spec, step, dtype_bytes=4, attention_bytes=0)
    assert 240 * spec.hidden_size * 4 + scratch["int8"] <= predicted


@pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
def test_no_type_needs_more_for_rounded_rows_than_the_formula_says():
    sizes = []
    for ggml_type in (2, 3, 6, 7, 8, 12, 13, 14):
        kind = native.library().paceline_cpu_packed_type(ggml_type, 1)
        for num_inputs in (256, 768, 14336):
            row = 3 * num_inputs // 2 + workspace.CACHE_LINE
            for num_rows in (1, 7, 13, 48, 97):
                size = native.library().paceline_cpu_linear_scratch(kind, num_rows, num_inputs)
                counted = num_rows + ceil_div(num_rows, workspace.ROUNDED_BLOCK)
                assert num_rows * num_inputs < size <= counted * row
                sizes.append((num_rows, size / (num_rows * num_inputs)))
    assert max(size for num_rows, size in sizes if num_rows == 48) == 1.5, "whole blocks at every level"
    assert native.library().paceline_cpu_linear_scratch(0, 7, 256) == 0, "floats are not rounded"


def test_scratch_memory_is_let_go_before_it_grows(monkeypatch):
    held, empty = [], torch.empty
    workspace_memory = Workspace()
    monkeypatch.setattr(
        torch, "empty", lambda *args, **kw: held.append(workspace_memory.num_bytes) or empty(*args, **kw)
    )
    for size in (10, 7, 20):
        assert len(workspace_memory.take("x", size, torch.float32, torch.device("cpu"))) == size
    assert held == [0, 0]
    assert workspace_memory.num_bytes == 80


def test_what_is_reported_takes_no_more_than_the_formula_says():
    """Python objects, which the measured step has of a few positions only: of all that a chunk may report."""
    torch.manual_seed(0)
    num, ids = 64, tuple(range(1000, 1000 + MAX_LOGPROB_TOKEN_IDS))
    logits, tokens = torch.randn(num, 5000), torch.arange(2000, 2000 + num).tolist()
    tracemalloc.start()
    try:
        entries = report(logits, tokens, [MAX_LOGPROBS] * num, [ids] * num)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(entries) == num
    predicted = num * workspace.REPORTED_PAIRS * workspace.REPORTED_BYTES
    assert peak <= predicted
    assert peak > predicted / 2, "so loose a bound is no prediction"
