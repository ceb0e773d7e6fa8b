"""The named workloads: what serving systems are asked for, each scaled to the server under test.

Sizes follow the context (`short` and `long` below), rates follow the estimated capacity, targets follow the unloaded
times: 5 x TTFT, 2 x TPOT; where answers are not streamed, 3 x the whole. `num_requests` sets the length of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError
from paceline.lab.workload.arrivals import Burst, Closed, Periodic, Poisson
from paceline.lab.workload.check import check_spec
from paceline.lab.workload.lengths import Fixed, Lognormal
from paceline.lab.workload.plan import mean_turns
from paceline.lab.workload.size import TargetSize
from paceline.lab.workload.spec import Cache, Documents, FaultShares, Prefix, Stream, Turns, WorkloadSpec
from paceline.lab.workload.unknown import nearest

_MIN_S = 20.0
_LONG_PREFILL_S = 2.0  # a long prompt takes no longer than this, unloaded
_LONG_DECODE_S = 4.0


class _Sizes:
    """Token counts for one server."""

    def __init__(self, size: TargetSize) -> None:
        room = size.room
        self.short_in = max(8, min(128, room // 6))
        self.short_out = max(2, min(32, room // 12))
        longest_in = _LONG_PREFILL_S / size.ttft_s * size.ttft_tokens
        self.long_in = round(max(2 * self.short_in, min(0.45 * room, 8192, longest_in)))
        self.long_out = round(max(2 * self.short_out, min(0.25 * room, 512, _LONG_DECODE_S / size.tpot_s)))
        self.mid_in = round(math.sqrt(self.short_in * self.long_in))
        self.mid_out = round(math.sqrt(self.short_out * self.long_out))


def _around(tokens: int) -> Lognormal:
    """Half are shorter, one in a hundred twice as long, none longer than that."""
    return Lognormal(p50=tokens, p99=2 * tokens, min=max(1, tokens // 4), max=2 * tokens)


class _Maker:
    """Builds one workload for one server."""

    def __init__(self, size: TargetSize, num_requests: int) -> None:
        self.size, self.num = size, num_requests
        self.tokens = _Sizes(size)

    def rate(self, num_input: float, num_output: float) -> float:
        return float(f"{self.size.load * self.size.capacity_rps(num_input, num_output):.3g}")

    def run_s(self, rps: float) -> float:
        return max(_MIN_S, self.num / rps)

    def slo(self, name: str, num_input: float, num_output: float, **more: Any) -> SloClass:
        ttft, tpot = 5 * self.size.prefill_s(num_input), 2 * self.size.tpot_s
        return SloClass(name=name, ttft_s=_round(ttft), tpot_s=_round(tpot), **more)

    def whole(self, name: str, num_input: float, num_output: float, factor: float = 3.0) -> SloClass:
        return SloClass(name=name, e2e_s=_round(factor * self.size.e2e_s(num_input, num_output)))

    def spec(self, streams: list[Stream], classes: list[SloClass], rps: float, **more: Any) -> WorkloadSpec:
        """`rps` in all, so that the run has its number of requests."""
        return WorkloadSpec(
            streams=tuple(streams),
            slo={c.name: c for c in classes},
            duration_s=_round(self.run_s(rps)),
            warmup_s=_round(min(10.0, 4 / rps)),
            drain_s=_round(max(10.0, 10 * self.size.e2e_s(self.tokens.long_in, self.tokens.long_out))),
            max_model_len=self.size.max_model_len,
            **more,
        )

    def plain(
        self, num_input: int, num_output: int, *, arrival: Callable[[float], Any] | None = None, **more: Any
    ) -> WorkloadSpec:
        """One stream of the default class around these lengths; `arrival` makes the process for a rate."""
        rate = self.rate(num_input, num_output)
        process = Poisson(rate=rate) if arrival is None else arrival(rate)
        stream = Stream(arrival=process, input=_around(num_input), output=_around(num_output), **more)
        return self.spec([stream], [self.slo("default", num_input, num_output)], rate)

    def prefixed(self, num_prefix: int, num_own: int, groups: int, zipf: float) -> WorkloadSpec:
        num_output = self.tokens.short_out
        rate = self.rate(num_prefix + num_own, num_output)
        prefix = Prefix(groups=groups, tokens=num_prefix, zipf=zipf)
        stream = Stream(arrival=Poisson(rate=rate), input=_fixed(num_own), output=_fixed(num_output), prefix=prefix)
        slo = self.slo("default", num_prefix + num_own, num_output)
        return self.spec([stream], [slo], rate, cache=Cache(protocol=("salt", "flush", "prime", "verify")))


def _fixed(tokens: int) -> Fixed:
    return Fixed(tokens=max(1, tokens))


def _round(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def _burst(m: _Maker, rate: float, run_s: float) -> Burst:
    """Twice what decodes at once, but four bursts or more in a run."""
    num = max(3, min(round(2 * m.size.parallel), round(rate * run_s / 4)))
    return Burst(size=num, every_s=_round(num / rate))


def _non_stream(m: _Maker) -> WorkloadSpec:
    t = m.tokens
    spec = m.plain(t.short_in, t.mid_out, streaming_share=0.0)
    return msgspec.structs.replace(spec, slo={"default": m.whole("default", t.short_in, t.mid_out)})


def _rag(m: _Maker) -> WorkloadSpec:
    t = m.tokens
    template, own, num_docs = t.short_in // 2, t.short_in // 3, 3
    documents = Documents(
        pool=40, per_request=num_docs, tokens=max(8, (t.long_in - template - own) // num_docs), zipf=0.8
    )
    num_input = template + own + num_docs * documents.tokens
    rate = m.rate(num_input, t.short_out)
    stream = Stream(
        arrival=Poisson(rate=rate),
        input=_around(own),
        output=_around(t.short_out),
        prefix=Prefix(groups=1, tokens=template),
        documents=documents,
    )
    return m.spec([stream], [m.slo("default", num_input, t.short_out)], rate)


def _sessions(m: _Maker, turns: Turns, num_first: int, own: int, out: int, prefix: Prefix | None) -> WorkloadSpec:
    """Sessions whose prompts grow: the rate counts all turns, priced at the mean length without a cache."""
    stream = Stream(arrival=Poisson(rate=1.0), input=_around(own), output=_around(out), turns=turns, prefix=prefix)
    num_input = num_first + own + (mean_turns(stream) - 1) / 2 * (own + out)
    per_arrival = m.rate(num_input, out) / mean_turns(stream)
    stream = msgspec.structs.replace(stream, arrival=Poisson(rate=_round(per_arrival)))
    return m.spec([stream], [m.slo("default", num_input, out)], per_arrival * mean_turns(stream))


def _agent(m: _Maker) -> WorkloadSpec:
    num_turns = 6
    tools = max(16, min(1024, m.size.room // 4, m.tokens.long_in))
    per_turn = max(6, (m.size.room - tools) // num_turns - 16)
    own, out = max(3, min(96, per_turn // 3)), max(2, min(32, per_turn // 6))
    turns = Turns(max=num_turns, think_s=_round(10 * m.size.tpot_s), think="exponential")
    return _sessions(m, turns, tools, own, out, Prefix(groups=1, tokens=tools, kind="tools"))


def _multi_turn(m: _Maker) -> WorkloadSpec:
    most = 5
    per_turn = max(6, m.size.room // most - 16)
    own, out = max(3, min(m.tokens.short_in // 2, per_turn // 3)), max(2, min(m.tokens.short_out, per_turn // 6))
    return _sessions(m, Turns(max=most, mean=3.0, think_s=_round(50 * m.size.tpot_s)), 0, own, out, None)


def _batch_prefix(m: _Maker) -> WorkloadSpec:
    t = m.tokens
    num_prefix, own = 3 * t.long_in // 4, t.long_in // 4
    slots = max(2, round(2 * m.size.parallel))
    stream = Stream(
        arrival=Closed(slots=slots, requests=m.num),
        input=_fixed(own),
        output=_fixed(t.short_out),
        prefix=Prefix(groups=1, tokens=num_prefix),
    )
    # `slots` requests share the server: what one takes alone, times that, twice over
    slo = m.whole("default", t.long_in, t.short_out, factor=2.0 * slots)
    spec = m.spec(
        [stream], [slo], m.rate(t.long_in, t.short_out), cache=Cache(protocol=("salt", "flush", "prime", "verify"))
    )
    return msgspec.structs.replace(spec, duration_s=None, warmup_s=0.0)


def _tenants(m: _Maker) -> WorkloadSpec:
    t = m.tokens
    shapes = {
        "gold": (t.short_in, t.short_out, 0.3),
        "silver": (t.mid_in, t.short_out, 0.3),
        "bronze": (t.mid_in, t.mid_out, 0.4),
    }
    mean_s = sum(share / m.size.capacity_rps(i, o) for i, o, share in shapes.values())
    total = m.size.load / mean_s
    streams = [
        Stream(
            name=name,
            slo_class=name,
            tenant=name,
            arrival=_burst(m, total * share, m.run_s(total))
            if name == "bronze"
            else Poisson(rate=_round(total * share)),
            input=_around(i),
            output=_around(o),
        )
        for name, (i, o, share) in shapes.items()
    ]
    classes = [m.slo(name, i, o, share=0.9 if name == "bronze" else 0.95) for name, (i, o, _) in shapes.items()]
    return m.spec(streams, classes, total)


def _checked(m: _Maker, content: str, num_output: int, *validators: str) -> WorkloadSpec:
    """The length of such an answer is its own: `num_output` tokens are room for nearly all of them, and the rate is as
    if they took half."""
    t = m.tokens
    most = min(m.size.room // 3, max(num_output, t.mid_out))
    spec = m.plain(t.short_in, max(most // 2, t.mid_out), content=content)
    stream = msgspec.structs.replace(spec.streams[0], output=_fixed(most))
    slo = {n: msgspec.structs.replace(c, validators=validators) for n, c in spec.slo.items()}
    return msgspec.structs.replace(spec, streams=(stream,), slo=slo)


def _faulty(m: _Maker, kind: str) -> WorkloadSpec:
    t = m.tokens
    whole_s = m.size.e2e_s(t.short_in, t.mid_out)
    faults = {
        "cancel": FaultShares(cancel_share=0.3),
        "timeout": FaultShares(timeout_share=0.2, timeout_s=_round(whole_s / 2)),
        "disconnect": FaultShares(disconnect_share=0.3, disconnect_after_s=(_round(whole_s / 50), _round(whole_s / 2))),
    }
    return m.plain(t.short_in, t.mid_out, faults=faults[kind])


_Make = Callable[[_Maker], WorkloadSpec]

_NAMED: dict[str, tuple[str, _Make]] = {
    "short-short": ("short prompts, short answers", lambda m: m.plain(m.tokens.short_in, m.tokens.short_out)),
    "long-short": (
        "long prompts, short answers: prefill decides",
        lambda m: m.plain(m.tokens.long_in, m.tokens.short_out),
    ),
    "short-long": (
        "short prompts, long answers: decoding decides",
        lambda m: m.plain(m.tokens.short_in, m.tokens.long_out),
    ),
    "long-long": ("long prompts, long answers: memory decides", lambda m: m.plain(m.tokens.long_in, m.tokens.long_out)),
    "prefix-high": (
        "three quarters of each prompt is one of four shared prefixes",
        lambda m: m.prefixed(3 * m.tokens.long_in // 4, m.tokens.long_in // 4, groups=4, zipf=1.0),
    ),
    "prefix-low": (
        "a tenth of each prompt is one of sixteen shared prefixes",
        lambda m: m.prefixed(m.tokens.long_in // 10, 9 * m.tokens.long_in // 10, groups=16, zipf=0.0),
    ),
    "rag": ("a fixed template, then three passages of a pool, then a question", _rag),
    "agent": ("one block of tools, then turns that grow by each tool's result", _agent),
    "batch-prefix": ("a batch job over one long prefix, in a closed loop", _batch_prefix),
    "steady": ("Poisson arrivals of middling requests", lambda m: m.plain(m.tokens.mid_in, m.tokens.mid_out)),
    "burst": (
        "the same requests, many at once and then none",
        lambda m: m.plain(m.tokens.mid_in, m.tokens.mid_out, arrival=lambda rate: _burst(m, rate, m.run_s(rate))),
    ),
    "periodic": (
        "the same requests, their rate rising and falling twice",
        lambda m: m.plain(
            m.tokens.mid_in,
            m.tokens.mid_out,
            arrival=lambda rate: Periodic(rate=rate, period_s=_round(m.run_s(rate) / 2), amplitude=0.8),
        ),
    ),
    "stream": ("streamed answers of middling length", lambda m: m.plain(m.tokens.short_in, m.tokens.mid_out)),
    "non-stream": ("the same requests, answered in one piece", _non_stream),
    "tenants": ("three tenants with targets of their own, the third in bursts", _tenants),
    "tools": ("requests that call a tool; the call is validated", lambda m: _checked(m, "tools", 96, "tool_call")),
    "structured": (
        "answers that follow a JSON schema; validated",
        lambda m: _checked(m, "structured", 256, "json", "schema"),
    ),
    "cancel": ("three in ten are cancelled while they are answered", lambda m: _faulty(m, "cancel")),
    "timeout": ("two in ten have a client that gives up early", lambda m: _faulty(m, "timeout")),
    "disconnect": ("three in ten lose their client without a word", lambda m: _faulty(m, "disconnect")),
    "multi-turn": ("conversations of one to five turns with time to think", _multi_turn),
}

MATRIX: dict[str, str] = {name: description for name, (description, _) in _NAMED.items()}
"""Name -> what it stands for, in order."""


def named(name: str, size: TargetSize | None = None, *, num_requests: int = 64) -> list[WorkloadSpec]:
    """The workload of this name for a server of this size; all of them for "matrix". A fast server gets at least 20 s
    of load, so more requests than asked. ConfigError for an unknown name (with the nearest)."""
    size = size or TargetSize()
    if name != "matrix" and name not in _NAMED:
        raise ConfigError(
            f"no workload is called {name!r}",
            seen=name,
            expected=", ".join(["matrix", *MATRIX]),
            fix=nearest(name, MATRIX) or "or give a spec file",
        )
    wanted = MATRIX if name == "matrix" else [name]
    return [_made(each, size, num_requests) for each in wanted]


def _made(name: str, size: TargetSize, num_requests: int) -> WorkloadSpec:
    description, make = _NAMED[name]
    spec = make(_Maker(size, num_requests))
    return check_spec(msgspec.structs.replace(spec, name=name, description=description))


__all__ = ["MATRIX", "TargetSize", "named"]
