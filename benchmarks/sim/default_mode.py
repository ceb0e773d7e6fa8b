"""What a plain server's scheduling gains or costs, whoever judges it: `python benchmarks/sim/default_mode.py`.

A server without a table of classes works towards the targets of the class `default`; its clients may have others in
mind. The same requests are simulated with the profile's knobs, once `fixed` and once `auto`, at rates around what it
can carry, and counted by three clients: who asks for what the class says, for half the time to the first token and a
third of that for the others, for twice and thrice as much. No clock is read: the numbers are the same anywhere.

    --model llama-3.1-8b --device l40s    as `paceline sim` takes them      --slo ttft=1s,tpot=60ms   as serve's
    --cells steady,rag                    of the matrix                      --rates 2,4               of the lab's own
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from paceline.assemble.sim import SimulatedEngine, load_workload, server_terms, simulated_engine
from paceline.config import ServerConfig, load_config
from paceline.contracts.slo import Slo, percentile
from paceline.lab.workload import make_plan, offered_rps
from paceline.server.tenancy.tenants import TenantBook
from paceline.sim.cluster import Ended
from paceline.sim.fleet import make_cluster


def judges(of_server: Slo) -> dict[str, Slo]:
    """Targets by name; those of the server, tighter and looser ones."""

    def scaled(first: float, pace: float) -> Slo:
        ttft_s, tpot_s = of_server.ttft_s, of_server.tpot_s
        return Slo(
            ttft_s=None if ttft_s is None else first * ttft_s,
            tpot_s=None if tpot_s is None else pace * tpot_s,
        )

    return {"tighter": scaled(0.5, 0.3), "as said": of_server, "looser": scaled(2.0, 3.0)}


def run(engine: SimulatedEngine, cell: str, factor: float, num_requests: int, server: ServerConfig) -> list[Ended]:
    """Everything that ended, of `factor` times the rate that the lab would choose for the cell."""
    rate = factor * offered_rps(load_workload(cell, engine, num_requests=num_requests))
    spec = load_workload(cell, engine, num_requests=num_requests, rate=rate, duration_s=num_requests / rate)
    ended: list[Ended] = []
    terms = server_terms(server)
    make_cluster(engine.replica, engine.cost, make_plan(spec, seed=1), on_end=ended.append, terms=terms).run()
    return ended


def figures(ended: Sequence[Ended], by: dict[str, Slo]) -> list[float]:
    """Shares that are good by each of `by`, then seconds: TTFT p50 and p95, TPOT p50 and p95."""
    lines = [e.timeline for e in ended if e.timeline is not None and e.outcome.value == "ok"]
    shares = [sum(line.is_good(slo) for line in lines) / len(ended) for slo in by.values()]
    first = [line.ttft_s for line in lines]
    pace = [line.tpot_s for line in lines if not math.isnan(line.tpot_s)]
    return [*shares, *(percentile(values, q) for values in (first, pace) for q in (0.5, 0.95))]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--device", default="l40s")
    parser.add_argument("--cells", default="steady,short-short,long-short,rag,burst")
    parser.add_argument("--rates", default="2,4,6")
    parser.add_argument("--num-requests", type=int, default=200)
    parser.add_argument("--slo")
    options = parser.parse_args(argv)
    server = ServerConfig(slo=options.slo)
    book = TenantBook.of(server)
    by = judges(book.resolve(book.named(None)).scheduled_for)
    flags = {"model": options.model}
    engines = {
        mode: simulated_engine(load_config(flags={**flags, "scheduling_mode": mode}), card=options.device)
        for mode in ("fixed", "auto")
    }
    print("share of requests that are good, fixed and auto, by each judge; TTFT and TPOT in seconds, p50 / p95")
    for name, slo in by.items():
        print(f"  {name}: TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s:g} s")
    for cell in options.cells.split(","):
        for factor in map(float, options.rates.split(",")):
            found = [figures(run(each, cell, factor, options.num_requests, server), by) for each in engines.values()]
            fixed, auto = found
            good = "  ".join(f"{name} {fixed[i]:.2f} {auto[i]:.2f}" for i, name in enumerate(by))
            times = "  ".join(
                f"{mode} {f[3]:.2f} / {f[4]:.2f}, {f[5]:.3f} / {f[6]:.3f}"
                for mode, f in zip(engines, found, strict=True)
            )
            print(f"{cell:<12} x{factor:<4g} {good}   {times}", flush=True)


if __name__ == "__main__":
    main()
