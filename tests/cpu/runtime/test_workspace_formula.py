"""The ledger's activations: the formula is an upper bound of what the worst step really takes."""

import json
import subprocess
import sys
import tracemalloc

import msgspec
import pytest
import torch
from tests.fakes.server_process import ROOT
from tests.pure.config.specs import GEMMA_270M, SMOLLM2

from paceline.contracts.kv import plan_kv_groups
from paceline.contracts.request import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from paceline.cost import workspace
from paceline.cost.workspace import activation_bytes, fast_attention_bytes, tiled_attention_bytes, worst_step
from paceline.runtime import model_runner
from paceline.runtime.kernels.torch_cpu import plan
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
LIMITS = StepLimits(max_rows=24, max_tokens=280, max_model_len=2048, chunk_tokens=256)


def measure_all() -> dict[str, int | None]:
    """Peak of each worst step, in this process."""
    found = {}
    for name, spec in SPECS.items():
        for numerics in ("fast", "reference"):
            weights = dummy_weights(spec, seed=0, dtype=torch.float32)
            worker = Worker.load(spec, weights, device="cpu", dtype=torch.float32, numerics=numerics)
            found[f"{name}-{numerics}"] = worker.measure_worst_step(LIMITS, block_size=16).peak_bytes
    return found


@pytest.fixture(scope="module")
def measured():
    """A process of its own, as an engine's is: in one that ran other tests, what they free meanwhile hides a peak."""
    program = f"import json, {__name__} as me; print(json.dumps(me.measure_all()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("numerics", ["fast", "reference"])
@pytest.mark.parametrize("name", SPECS)
def test_the_worst_step_takes_no_more_than_the_formula_says(measured, name, numerics):
    spec, peak = SPECS[name], measured[f"{name}-{numerics}"]
    if peak is None:
        pytest.skip("this system does not say how much memory a step took")
    step = worst_step(spec, num_tokens=280, num_rows=24, context_tokens=2048)
    if numerics == "fast":
        attention = fast_attention_bytes(spec, step, 4)
    else:
        attention = tiled_attention_bytes(spec, step, len(plan_kv_groups(spec, 16, 4)))
    predicted, how = activation_bytes(spec, step, dtype_bytes=4, attention_bytes=attention)
    assert peak <= predicted, how
    assert peak > predicted / 6, "so loose a bound is no prediction"


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
