"""Steps of known price, for tests of what learns prices."""

from __future__ import annotations

from random import Random

from paceline.contracts.ports import StepShape
from paceline.contracts.specs import DeviceSpec, LayerSpec, ModelSpec
from paceline.cost import StepCost, StepPrior, decode_shape, joined, prefill_shape
from paceline.cost.features import features

CPU = DeviceSpec(kind="cpu", name="two cores", memory_bytes=8 << 30, num_cores=2, gflops=200.0, memory_gbps=20.0)
GPU = DeviceSpec(kind="cuda", name="card", memory_bytes=80 << 30, num_cores=132, gflops=989e3, memory_gbps=3350.0)
TRUE_PRICES = (4.0, 0.6, 0.9, 1.0, 1.1, 1.1, 0.05, 0.4, 0.001, 0.0004)  # ms per unit of each feature


def model(**changes: object) -> ModelSpec:
    sizes: dict[str, object] = {
        "family": "llama",
        "name": "small",
        "revision": "r",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "layers": (LayerSpec(),) * 30,
        "max_model_len": 2048,
        "tie_word_embeddings": True,
    }
    return ModelSpec(**{**sizes, **changes})  # type: ignore[arg-type]


def cpu_prior() -> StepPrior:
    return StepPrior(model(), CPU, weight_bytes=90e6, dtype_bytes=4, kv_dtype_bytes=4)


def true_ms(shape: StepShape, factor: float = 1.0) -> float:
    return factor * sum(p * a for p, a in zip(TRUE_PRICES, features(shape), strict=True))


def random_shape(random: Random) -> StepShape:
    """Decoding rows, a chunk, or both."""
    rows = random.randrange(1, 17)
    decodes = decode_shape(rows, random.randrange(16, 900))
    kind = random.random()
    if kind < 0.5:
        return decodes
    chunk = prefill_shape(random.randrange(4, 512), random.randrange(0, 900), sampled=random.random() < 0.5)
    return chunk if kind < 0.7 else joined(decodes, chunk)


def noisy(random: Random, ms: float, spread: float = 0.05) -> float:
    return ms * max(0.2, random.gauss(1.0, spread))


def teach(cost: StepCost, random: Random, count: int, factor: float = 1.0, spread: float = 0.03) -> None:
    """`count` random steps of a machine whose steps take `factor` times the true time."""
    for _ in range(count):
        shape = random_shape(random)
        cost.observe(shape, noisy(random, true_ms(shape, factor), spread))


def taught(seed: int, count: int = 400, spread: float = 0.03) -> StepCost:
    """A model that began with the prior and has seen `count` steps."""
    cost = StepCost.from_prior(cpu_prior())
    teach(cost, Random(seed), count, spread=spread)
    return cost
