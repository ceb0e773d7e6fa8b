"""Rotary position embedding: the angles of each token, under the scalings that configurations use.

Formulas as transformers computes them: Su et al. 2021; linear (position interpolation, Chen et al. 2023); dynamic NTK;
llama3 (Llama 3.1 reference code); YaRN (Peng et al. 2023).

Dynamic NTK makes frequencies depend on the sequence's length. Here position p always has those of a sequence of p + 1
tokens, so a key is the same whether its prompt came whole, in chunks or from the prefix cache. transformers agrees as
long as a prompt fits the unscaled range, for any number of generated tokens; it rotates a longer prompt by its final
length.
"""

from __future__ import annotations

import math

import torch

from paceline.contracts.specs import RopeSpec

Tables = tuple[torch.Tensor, torch.Tensor]

TABLE_POSITIONS = 1 << 15  # positions whose angles are kept, on a CPU: 16 MiB at a head dimension of 64
_TABLE_STEP = 1024  # they are worked out so many at a time, when the first of them is needed


class Rotary:
    """Positions -> (cos, sin), once per forward pass for all layers with the same spec."""

    def __init__(self, spec: RopeSpec, head_dim: int, device: torch.device) -> None:
        self.spec, self.head_dim = spec, head_dim
        frequencies, self.scaling = frequencies_of(spec, head_dim)
        self.inverse = frequencies.to(device)
        self.exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
        self._kept = torch.empty(2, 0, 1, head_dim, dtype=torch.float32)

    def __call__(self, positions: torch.Tensor) -> Tables:
        """positions [T] int64 -> cos and sin, [T, 1, head_dim] float32; the first half of sin is negated."""
        if positions.device.type != "cpu" or not len(positions):
            return self._at(positions)
        past = int(positions.max()) + 1
        if past > TABLE_POSITIONS:
            return self._at(positions)
        if past > self._kept.shape[1]:
            self._keep(past)
        return self._kept[0].index_select(0, positions), self._kept[1].index_select(0, positions)

    def _keep(self, past: int) -> None:
        """Angles of all positions before `past`, so that a step looks them up: at one row the calls would show."""
        parts = [self._kept]
        for begin in range(self._kept.shape[1], past, _TABLE_STEP):
            parts.append(torch.stack(self._at(torch.arange(begin, begin + _TABLE_STEP))))
        self._kept = torch.cat(parts, 1)

    def _at(self, positions: torch.Tensor) -> Tables:
        angles = positions[:, None].float() * self._inverse_at(positions)
        cos, sin = angles.cos(), angles.sin()
        if self.scaling != 1.0:
            cos, sin = cos * self.scaling, sin * self.scaling
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]

    def _inverse_at(self, positions: torch.Tensor) -> torch.Tensor:
        """[head_dim / 2], or [T, head_dim / 2] where frequencies differ by position."""
        if self.spec.kind != "dynamic":
            return self.inverse
        original = self.spec.original_max_position
        assert original is not None, "dynamic scaling needs original_max_position"
        length = (positions + 1).clamp(min=original).double()
        stretch = self.spec.factor * length / original - (self.spec.factor - 1)
        base: torch.Tensor = self.spec.theta * stretch ** (self.head_dim / (self.head_dim - 2))
        return (1.0 / base[:, None] ** self.exponents).float()


def frequencies_of(spec: RopeSpec, head_dim: int) -> tuple[torch.Tensor, float]:
    """([head_dim / 2] float32 radians per position, factor on cos and sin)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / spec.theta**exponents
    match spec.kind:
        case "default" | "dynamic":
            return plain, 1.0
        case "linear":
            return plain / spec.factor, 1.0
        case "llama3":
            return _llama3(spec, plain), 1.0
        case "yarn":
            return _yarn(spec, head_dim, plain), _yarn_scaling(spec)


def _llama3(spec: RopeSpec, plain: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    original = spec.original_max_position
    assert original is not None, "llama3 scaling needs original_max_position"
    wavelength = 2 * math.pi / plain
    low, high = original / spec.low_freq_factor, original / spec.high_freq_factor
    stretched = torch.where(wavelength > low, plain / spec.factor, plain)
    blend = (original / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blended = (1 - blend) * stretched / spec.factor + blend * stretched
    between = ~(wavelength < high) & ~(wavelength > low)
    return torch.where(between, blended, stretched)


def _yarn(spec: RopeSpec, head_dim: int, plain: torch.Tensor) -> torch.Tensor:
    """Dimensions that turn often keep their frequency, those that turn rarely are interpolated, a ramp lies between."""
    original = spec.original_max_position
    assert original is not None, "yarn scaling needs original_max_position"

    def dimension_of(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return plain / spec.factor * (1 - keep) + plain * keep


def _yarn_scaling(spec: RopeSpec) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if spec.factor <= 1 else 0.1 * weight * math.log(spec.factor) + 1.0

    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return mscale(spec.mscale) / mscale(spec.mscale_all_dim)
    return mscale(1.0)
