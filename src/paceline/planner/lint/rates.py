"""PL207: predictions that rest on rates which no product reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paceline.contracts.lint import Evidence, Finding, Fix, Severity
from paceline.planner.devices import DEVICES, DeviceCard
from paceline.planner.lint.facts import Facts
from paceline.planner.lint.fleet import DeviceFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact

_TWICE = 1.9  # of a product: a zero counted, or a direction
_ALIKE = 0.05  # memory and bandwidth may differ by so much, and it is the same product


class _Rate(NamedTuple):
    key: str  # of a device's file
    name: str
    value: float  # in the file's unit
    unit: str
    known: dict[str, float]  # product -> its rate
    cause: str


def check(facts: Facts) -> Iterator[Finding]:
    device = facts.device
    assert device is not None, "needs()"
    if not device.own:
        return  # of the table: dense and one way
    found: dict[str, tuple[float, str]] = {}  # key -> what it should be, and why
    evidence: list[Evidence] = [
        fact("device", device.name, "", CONFIGURED),
        fact("source", device.source, "", CONFIGURED),
    ]
    like = _like(device)
    for rate in _rates(device):
        flagged = device.both_directions if rate.key.endswith("link_gbps") else device.sparse
        flagged = flagged and rate.key != "memory_gbps"
        same = rate.known.get(like.spec.name) if like is not None else None
        most = max(rate.known.values(), default=None)
        if flagged:
            found[rate.key] = (rate.value / 2, f"{rate.name} counts {rate.cause}, as its file says")
        elif same is not None and rate.value >= _TWICE * same:
            assert like is not None
            times = rate.value / same
            found[rate.key] = (same, f"{rate.name} is {times:.3g} times that of {like.spec.name}: {rate.cause}")
        elif most is not None and rate.value > _TWICE * most:
            best = max(rate.known, key=lambda name: rate.known[name])
            times = rate.value / most
            found[rate.key] = (
                rate.value / 2,
                f"{rate.name} is {times:.3g} times that of {best}, which has the most of its kind: {rate.cause}",
            )
        else:
            continue
        evidence.append(fact(rate.name, rate.value, rate.unit, CONFIGURED))
        if same is not None and like is not None:
            evidence.append(fact(f"{rate.name} of {like.spec.name}", same, rate.unit, "the planner's table"))
        elif most is not None:
            evidence.append(fact(f"{rate.name}, most of its kind", most, rate.unit, "the planner's table"))
    if not found:
        return
    keys: dict[str, float | bool] = {key: float(f"{value:.6g}") for key, (value, _) in found.items()}
    if device.sparse:
        keys["sparse"] = False
    if device.both_directions:
        keys["both_directions"] = False
    told = "; ".join(why for _, why in found.values())
    fix = Fix(
        words="dense FLOPS and one direction in the device's file: "
        + ", ".join(f"{k} = {_toml(v)}" for k, v in keys.items()),
        device=keys,
        gain="predictions that a device can keep",
    )
    yield RULE.finding(Severity.ERROR, f"{told}.", fix, tuple(evidence), subject=device.name)


def needs(facts: Facts) -> str:
    if facts.device is None:
        return "what the device's rates are said to be (--device)"
    return "" if facts.device.kind == "cuda" else "a card: this machine's rates are measured"


def _like(device: DeviceFacts) -> DeviceCard | None:
    """The product of the table that it is: by its name, or by memory and bandwidth."""
    name = device.name.lower().replace(" ", "-").replace("_", "-")
    for product in sorted(DEVICES, key=len, reverse=True):
        if product in name:
            return DEVICES[product]
    for card in DEVICES.values():
        near = (
            abs(device.memory_bytes / card.spec.memory_bytes - 1) <= _ALIKE,
            abs(device.memory_gbps / card.spec.memory_gbps - 1) <= _ALIKE,
        )
        if all(near) and device.link in ("", card.link):
            return card
    return None


def _rates(device: DeviceFacts) -> list[_Rate]:
    """Against products whose devices are joined in the same way."""
    kind = {name: c for name, c in DEVICES.items() if device.link in ("", c.link)}
    zeros, both = "zeros that are skipped (2:4 sparsity)", "both directions of it"
    found = [
        _Rate("tflops", "16-bit rate", device.gflops / 1e3, "TFLOP/s",
              {n: c.spec.gflops / 1e3 for n, c in kind.items()}, zeros),
        _Rate("memory_gbps", "memory rate", device.memory_gbps, "GB/s",
              {n: c.spec.memory_gbps for n, c in kind.items()}, "reading and writing together"),
    ]  # fmt: skip
    if device.fp8_gflops is not None:
        eight = {n: c.fp8_gflops / 1e3 for n, c in kind.items() if c.fp8_gflops is not None}
        found.append(_Rate("tflops_fp8", "8-bit rate", device.fp8_gflops / 1e3, "TFLOP/s", eight, zeros))
    if device.link_gbps is not None:
        links = {n: c.link_gbps for n, c in kind.items()} if device.link else {}
        found.append(_Rate("link_gbps", "link", device.link_gbps, "GB/s", links, both))
    return found


def _toml(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


RULE = Rule(
    code="PL207",
    title="rates that no product reaches",
    what="Data sheets count skipped zeros (2:4 sparsity) and both directions of a link: each is twice too good, and so "
    "is every prediction that is made of it.",
    evidence="Flags of the file that describes the device; its rates against those of the product that it is, by name "
    "or by memory, and against the most that any product of its kind has. From a simulated run: the device that its "
    "prices came from.",
    fix="Dense FLOPS, one direction.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
