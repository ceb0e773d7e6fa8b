"""Questions for tests: small traffic, real cards."""

import numpy as np

from paceline.contracts.workload import SloClass
from paceline.planner import CARDS, DEVICES, Fleet, Kept, Question, Traffic

SLO = SloClass(ttft_s=0.5, tpot_s=0.03)


def lognormal(p50, p99, count=32):
    """Quantiles, without scipy."""
    from statistics import NormalDist

    sigma = np.log(p99 / p50) / 2.326
    places = (np.arange(count) + 0.5) / count
    return np.rint(p50 * np.exp(sigma * np.array([NormalDist().inv_cdf(q) for q in places])))


def traffic(**changed):
    values = {"input_tokens": lognormal(800, 4000), "output_tokens": lognormal(150, 600)}
    return Traffic(**{**values, **changed})


def short():
    """Prompts for which one chunk size is worth a look: a sixth of the search."""
    return traffic(input_tokens=np.array([60.0]))


def question(model="llama-3.1-8b", device="h100-sxm", devices=1, nodes=1, **changed):
    card = CARDS[model]
    values = {
        "spec": card.spec,
        "card": DEVICES[device],
        "fleet": Fleet(num_devices=devices, num_nodes=nodes),
        "traffic": traffic(),
        "slo": SLO,
        "kept": Kept(weights=card.weights),
        "price_per_hour": 3.0,
        "serve_name": card.hub_id,
    }
    return Question(**{**values, **changed})
