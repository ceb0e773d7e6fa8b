"""PL207: predictions that rest on rates which no product reaches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.devices import DEVICES
from paceline.planner.lint.facts import Facts
from paceline.planner.lint.fleet import DeviceFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact

_TWICE = 1.9  # of a product: a zero counted, or a direction
_MORE = 2.1  # beyond it, what only looks like a product by its memory is another one
_TABLE = "the planner's table"
_ALIKE = 0.05  # memory and bandwidth may differ by so much, and it is the same product


class _Rate(NamedTuple):
    key: str  # of a device's file
    name: str
    value: float  # in the file's unit
    unit: str
    known: dict[str, float]  # product -> its rate
    cause: str
    flagged: bool = False  # by whoever described the device


def check(facts: Facts) -> Iterator[Finding]:
    device = facts.device
    assert device is not None, "needs()"
    if not device.own:
        return  # of the table: dense and one way
    like = _like(device)
    wrong = [found for rate in _rates(device) if (found := _judged(rate, like))]
    if not wrong:
        return
    keys: dict[str, float | bool] = {one.rate.key: float(f"{one.instead:.6g}") for one in wrong}
    if device.sparse:
        keys["sparse"] = False
    if device.both_directions:
        keys["both_directions"] = False
    fix = Fix(
        words="dense FLOPS and one direction in the device's file: "
        + ", ".join(f"{key} = {_toml(value)}" for key, value in keys.items()),
        device=keys,
        gain="predictions that a device can keep",
    )
    evidence = [fact("device", device.name, "", CONFIGURED), fact("source", device.source, "", CONFIGURED)]
    for one in wrong:
        evidence.append(fact(one.rate.name, one.rate.value, one.rate.unit, CONFIGURED))
        if one.of:
            evidence.append(fact(f"{one.rate.name} of {one.of}", one.rate.known[one.of], one.rate.unit, _TABLE))
    sentence = "; ".join(one.why for one in wrong) + "."
    yield RULE.finding(Severity.ERROR, sentence, fix, tuple(evidence), subject=device.name)


class _Wrong(NamedTuple):
    rate: _Rate
    instead: float
    why: str
    of: str = ""  # product it was held against


class _Like(NamedTuple):
    product: str  # of the table
    by_name: bool


def _judged(rate: _Rate, like: _Like | None) -> _Wrong | None:
    """`like`: the product of the table that the device is, if it is one."""
    if rate.flagged:
        return _Wrong(rate, rate.value / 2, f"{rate.name} counts {rate.cause}, as its file says")
    if like is not None and like.product in rate.known:
        name, own = like.product, rate.known[like.product]
        if rate.value >= _TWICE * own and (like.by_name or rate.value <= _MORE * own):
            why = f"{rate.name} is {rate.value / own:.3g} times that of {name}: {rate.cause}"
            return _Wrong(rate, own, why, name)
    best = max(rate.known, key=lambda name: rate.known[name], default=None)
    if best is None or rate.value <= _TWICE * rate.known[best]:
        return None
    most = rate.known[best]
    half = rate.value / 2
    why = f"{rate.name} is {rate.value / most:.3g} times that of {best}, which has the most of its kind: {rate.cause}"
    return _Wrong(rate, half if half <= _TWICE * most else most, why, best)


def needs(facts: Facts) -> str:
    if facts.device is None:
        return "what the device's rates are said to be (--device)"
    return "" if facts.device.kind == "cuda" else "a card: this machine's rates are measured"


def _like(device: DeviceFacts) -> _Like | None:
    """The product of the table that it is: by its name, or by memory and bandwidth. A product's name is a word of the
    device's: L40 is no L4, and GB200 no B200."""
    name = re.sub(r"[\s_]+", "-", device.name.strip().lower())
    for product in sorted(DEVICES, key=len, reverse=True):
        if re.search(rf"(?<![a-z0-9]){re.escape(product)}(?![a-z0-9])", name):
            return _Like(product, by_name=True)
    for product, card in DEVICES.items():
        near = (
            abs(device.memory_bytes / card.spec.memory_bytes - 1) <= _ALIKE,
            abs(device.memory_gbps / card.spec.memory_gbps - 1) <= _ALIKE,
        )
        if all(near) and device.link in ("", card.link):
            return _Like(product, by_name=False)
    return None


def _rates(device: DeviceFacts) -> list[_Rate]:
    """Against products whose devices are joined in the same way."""
    alike = {name: c for name, c in DEVICES.items() if device.link in ("", c.link)}
    kind = alike or DEVICES
    zeros, both = "zeros that are skipped (2:4 sparsity)", "both directions of it"
    found = [
        _Rate("tflops", "16-bit rate", device.gflops / 1e3, "TFLOP/s",
              {n: c.spec.gflops / 1e3 for n, c in kind.items()}, zeros, device.sparse),
        _Rate("memory_gbps", "memory rate", device.memory_gbps, "GB/s",
              {n: c.spec.memory_gbps for n, c in kind.items()}, "reading and writing together"),
    ]  # fmt: skip
    if device.fp8_gflops is not None:
        eight = {n: c.fp8_gflops / 1e3 for n, c in kind.items() if c.fp8_gflops is not None}
        found.append(_Rate("tflops_fp8", "8-bit rate", device.fp8_gflops / 1e3, "TFLOP/s", eight, zeros, device.sparse))
    if device.link_gbps is not None:
        links = {n: c.link_gbps for n, c in alike.items()} if device.link else {}
        found.append(_Rate("link_gbps", "link", device.link_gbps, "GB/s", links, both, device.both_directions))
    if device.net_gbps is not None:  # any rate is sold: only its flag tells
        found.append(_Rate("net_gbps", "network", device.net_gbps, "GB/s", {}, both, device.both_directions))
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
