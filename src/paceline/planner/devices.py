"""Devices to plan for: what their makers publish, and how they are linked.

Public tables mix rates with and without 2:4 sparsity, and links counted in one or in both directions; both are twofold
mistakes. Every card here is dense and one way, and says where it is from; a user's own may be neither, and then says
so. A rate no card has is None, never a guess; what is assumed all the same is named in `assumed`.
"""

from __future__ import annotations

import msgspec

from paceline.contracts.specs import DeviceSpec
from paceline.cost.transfer import Link

GIB = 1 << 30
GB = 10**9


class DeviceCard(msgspec.Struct, frozen=True, kw_only=True):
    """One device, its links and its price of being wrong."""

    spec: DeviceSpec  # gflops: 16-bit products; memory_bytes: all of it
    link: str  # what joins devices of a node
    link_gbps: float  # published rate, one direction
    link_latency_us: tuple[float, float, float]  # of an all-reduce over 2, 4 and 8 devices
    net_gbps: float  # per device, one direction, to another node
    fp8_gflops: float | None = None  # None: no 8-bit float products; such weights are widened
    watts: float | None = None
    per_node: int = 8
    dense: bool = True  # no rate counts skipped zeros
    one_way: bool = True  # no link counts both directions
    source: str = ""
    assumed: str = ""

    def fast_link(self, num_devices: int) -> Link:
        """Between devices of one node, for a group of so many."""
        two, four, eight = self.link_latency_us
        latency = two if num_devices <= 2 else four if num_devices <= 4 else eight
        return Link(gbps=self.link_gbps, latency_us=latency)

    def network(self) -> Link:
        """To another node."""
        return Link(gbps=self.net_gbps, latency_us=NET_LATENCY_US)

    def rate(self, weights: str) -> float:
        """GFLOP/s of products with weights of a format: only 8-bit floats are faster than 16-bit ones here."""
        return self.fp8_gflops if weights == "fp8" and self.fp8_gflops is not None else self.spec.gflops


NET_LATENCY_US = 50.0
_ASSUMED_NET = f"network latency {NET_LATENCY_US:g} us"
_H100_FIT = "all-reduce fit to Vidur's H100 DGX times (a + S / B): 24, 28, 35 us for 2, 4, 8"
_A100_FIT = "all-reduce fit to Vidur's A100 DGX times (a + S / B): 45, 54, 70 us for 2, 4, 8"
_AS_H100 = "link latency as fitted on H100"
_PCIE = "PCIe latency as fitted on A100 links"


def _cuda(name: str, gib: float, tbps: float, tflops: float, cores: int) -> DeviceSpec:
    return DeviceSpec(
        kind="cuda", name=name, memory_bytes=int(gib * GIB), num_cores=cores, gflops=tflops * 1e3,
        memory_gbps=tbps * 1e3, source="published peak",
    )  # fmt: skip


def _nvlink(
    name: str, gib: float, tbps: float, tflops: float, fp8: float | None, cores: int, *, link_gbps: float, watts: float,
    net_gbps: float = 50.0, latency: tuple[float, float, float] = (24.0, 28.0, 35.0), source: str, assumed: str,
) -> DeviceCard:  # fmt: skip
    return DeviceCard(
        spec=_cuda(name, gib, tbps, tflops, cores), link="NVLink", link_gbps=link_gbps, link_latency_us=latency,
        net_gbps=net_gbps, fp8_gflops=None if fp8 is None else fp8 * 1e3, watts=watts, source=source, assumed=assumed,
    )  # fmt: skip


def _card(
    name: str, gib: float, tbps: float, tflops: float, fp8: float | None, cores: int, *, pcie_gbps: float, watts: float,
    source: str,
) -> DeviceCard:  # fmt: skip
    return DeviceCard(
        spec=_cuda(name, gib, tbps, tflops, cores), link="PCIe", link_gbps=pcie_gbps,
        link_latency_us=(45.0, 54.0, 70.0), net_gbps=12.5, fp8_gflops=None if fp8 is None else fp8 * 1e3, watts=watts,
        source=source, assumed=f"{_PCIE}; network of 100 Gbit/s; {_ASSUMED_NET}",
    )  # fmt: skip


_AIC = "AIConfigurator system files at 095f58a5"
DEVICES: dict[str, DeviceCard] = {
    card.spec.name: card
    for card in (
        _nvlink("h100-sxm", 80, 3.35, 989, 1978, 132, link_gbps=450, watts=700, source=f"{_AIC}; {_H100_FIT}",
                assumed=_ASSUMED_NET),
        _nvlink("h200", 141, 4.8, 989, 1978, 132, link_gbps=450, watts=700, source=_AIC,
                assumed=f"{_AS_H100}; {_ASSUMED_NET}"),
        _nvlink("b200", 180, 7.7, 2250, 4500, 148, link_gbps=900, watts=1000, net_gbps=100, source=_AIC,
                assumed=f"{_AS_H100}; {_ASSUMED_NET}"),
        _nvlink("a100-sxm", 80, 2.039, 312, None, 108, link_gbps=300, watts=400, net_gbps=25,
                latency=(45.0, 54.0, 70.0), source=f"{_AIC}; {_A100_FIT}", assumed=_ASSUMED_NET),
        _card("h100-pcie", 80, 2.0, 756, 1513, 114, pcie_gbps=64, watts=350, source=_AIC),
        _card("l40s", 46_068 / 1024, 0.864, 362, 733, 142, pcie_gbps=32, watts=350, source=_AIC),
        _card("l4", 24, 0.300, 121, 242, 58, pcie_gbps=32, watts=72, source=_AIC),
        _card("a30", 24, 0.933, 165, None, 56, pcie_gbps=32, watts=165, source=_AIC),
        _card("a10", 24 * GB / GIB, 0.600, 125, None, 72, pcie_gbps=32, watts=150, source=_AIC),
        _card("rtx-4090", 24, 1.008, 165, 330, 128, pcie_gbps=32, watts=450, source="two public tables that agree"),
        _card("mi300x", 192 * GB / GIB, 5.3, 1307, 2615, 304, pcie_gbps=64, watts=750,
              source="two public tables that agree; its own links are left out"),
    )
}  # fmt: skip
