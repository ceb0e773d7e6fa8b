"""Prices from steps that were timed together: least squares with weights of zero or more, starting from a prior.

Minimises, over weights of 0 or more,

    sum over steps  trust * ((expected - ms) / (noise * ms))^2   +   (w - w0)' P0^-1 (w - w0)

Errors are relative, `trust` are Huber's weights found by repetition, and the second term is the prior's: where steps
say nothing (a size of chunk that was not timed), its prices stay. Solved as one non-negative least squares problem (C.
L. Lawson, R. J. Hanson, "Solving Least Squares Problems", 1974) by scipy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.contracts.ports import StepShape
from paceline.cost.features import features
from paceline.cost.fit import HUBER, MIN_NOISE, prior_covariance
from paceline.cost.model import Prior, StepCost, grown, prior_prices, sizes

ROUNDS = 6
MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


def fit_steps(prior: Prior, steps: Sequence[tuple[StepShape, float]], *, step_spread: float) -> StepCost:
    """A model that has been shown `steps`: (size, ms), each ms the middle of several tries of that size.

    `step_spread`: relative standard deviation of a single try around that middle. It is part of the noise that
    intervals are made of, beside what the model itself misses.
    """
    from scipy.optimize import nnls

    scale, start = prior_prices(prior)
    amounts = np.array([features(shape) for shape, _ in steps])
    ms = np.array([ms for _, ms in steps])
    relative = amounts * np.array(scale) / ms[:, None]  # [steps, weights]; 1 is met
    root = np.linalg.inv(np.linalg.cholesky(np.array(prior_covariance(start))))
    noise, trust = 0.05, np.ones(len(ms))
    for _ in range(ROUNDS):
        by = np.sqrt(trust) / noise
        system = np.concatenate([relative * by[:, None], root])
        weights, _ = nnls(system, np.concatenate([by, root @ np.array(start)]))
        errors = np.abs(relative @ weights - 1.0)
        noise = max(MIN_NOISE, MAD * float(np.median(errors)))
        trust = np.minimum(1.0, HUBER * noise / np.maximum(errors, 1e-12))
    covariance = np.linalg.inv(system.T @ system)
    low: list[float] = []
    high: list[float] = []
    timed: list[float] = []
    for row in amounts:
        size = sizes(tuple(row.tolist()))
        low, high = grown(low, high, size)
        timed += size
    return StepCost(
        scale=scale,
        weights=weights.tolist(),
        covariance=[float(covariance[i, j]) for i in range(len(scale)) for j in range(i, len(scale))],
        noise=noise * noise + step_spread * step_spread,
        low=low,
        high=high,
        timed=timed,
    )
