"""How a model may lie over devices: the degrees of one replica, replicas of it, and where a group leaves its node.

Ranks of a replica are numbered with tensor parallel innermost, then context, experts and stages: what talks most sits
closest. The search has no context parallel layouts; prices have.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paceline.contracts.specs import ModelSpec
from paceline.cost.prior import Degrees
from paceline.errors import ConfigError


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to use."""

    num_devices: int = 1  # over all nodes
    num_nodes: int = 1

    def __post_init__(self) -> None:
        if self.num_devices < 1 or self.num_nodes < 1 or self.num_devices % self.num_nodes:
            raise ConfigError(
                "the devices do not divide over the nodes",
                seen=f"{self.num_devices} devices, {self.num_nodes} nodes",
                expected="at least one of each, and as many on every node",
            )

    @property
    def per_node(self) -> int:
        return self.num_devices // self.num_nodes


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas` engines beside each other, each over `degrees.num_ranks` devices."""

    degrees: Degrees = Degrees()
    replicas: int = 1

    @property
    def num_devices(self) -> int:
        return self.degrees.num_ranks * self.replicas

    def crosses(self, per_node: int) -> dict[str, bool]:
        """By axis: whether its groups reach over nodes of so many devices."""
        d = self.degrees
        return {
            "tp": d.tp > per_node,
            "cp": d.cp > 1 and d.tp * d.cp > per_node,
            "ep": d.ep > 1 and d.tp * d.cp * d.ep > per_node,
            "pp": d.pp > 1 and d.num_ranks > per_node,
        }

    def __str__(self) -> str:
        d = self.degrees
        parts = [
            f"{name.upper()}{value}"
            for name, value in (("tp", d.tp), ("cp", d.cp), ("ep", d.ep), ("pp", d.pp))
            if value > 1
        ]
        whole = " ".join(parts) or "one device"
        return whole if self.replicas == 1 else f"{self.replicas} x ({whole})" if parts else f"DP{self.replicas}"


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def layouts(spec: ModelSpec, fleet: Fleet) -> Iterator[Layout]:
    """Every division of one replica that fills whole parts of the fleet, with as many replicas as there is room for.

    A replica within a node divides the node; one over several takes whole nodes. Whether a model's sizes allow it, and
    whether it fits, is not asked here.
    """
    for ranks in divisors(fleet.num_devices):
        within = fleet.per_node % ranks == 0 if ranks <= fleet.per_node else ranks % fleet.per_node == 0
        if not within:
            continue
        for tp in divisors(ranks):
            for pp in divisors(ranks // tp):
                ep = ranks // tp // pp
                if ep > 1 and spec.experts is None:
                    continue
                yield Layout(degrees=Degrees(tp=tp, pp=pp, ep=ep), replicas=fleet.num_devices // ranks)
