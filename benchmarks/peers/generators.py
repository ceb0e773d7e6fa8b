"""Load generators side by side against one scripted server: whose figures are nearest the truth, who is the fastest.

The truth is the server's own log of when it sent what, on the same machine's clock. First a server of known TTFT and
TPOT that sends several tokens in each chunk; then one that takes no time, asked for ever higher even rates: a rate
holds when requests arrive at 99 % of it at least. How late they arrive against an even schedule stands beside it.

    benchmarks/peers/setup_generators.sh DIR
    python benchmarks/peers/generators.py --envs DIR [--tools paceline guidellm] [--rates 50 200 800] [--seconds 5]

Run it on a machine that does nothing else. A peer that is not installed is named, and left out.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

from peer_tools import PEERS, Asked, Ours, Told, Tool, ToolFailedError, write_tokenizer

from paceline.contracts.slo import percentile
from paceline.lab.mock import Flavour, LogEntry, MockProcess, Script, Service

TTFT_MS, TPOT_MS, TOKENS_PER_CHUNK = 200.0, 20.0, 4
TRUTH = Script(
    flavour=Flavour.VLLM, service=Service(ttft_ms=TTFT_MS, tpot_ms=TPOT_MS, tokens_per_chunk=TOKENS_PER_CHUNK)
)
NULL = Script(flavour=Flavour.VLLM, log_chunks=False)
FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens")


def truth_of(entries: list[LogEntry]) -> Told:
    """Means over what the server did; E2E from the arrival to the last token."""
    return Told(
        ttft_ms=statistics.fmean(entry.ttft_s for entry in entries) * 1e3,
        tpot_ms=statistics.fmean(entry.tpot_s for entry in entries) * 1e3,
        e2e_ms=statistics.fmean(entry.e2e_s for entry in entries) * 1e3,
        output_tokens=statistics.fmean(entry.num_tokens_sent for entry in entries),
        rps=arrival_rate(entries),
    )


def arrival_rate(entries: list[LogEntry]) -> float:
    times = sorted(entry.t_arrival_ns for entry in entries)
    return (len(times) - 1) * 1e9 / (times[-1] - times[0]) if len(times) > 1 else math.nan


def lateness_ms(entries: list[LogEntry], rate: float) -> float:
    """99th percentile of how late requests arrived against an even schedule through the earliest of them."""
    times = sorted(entry.t_arrival_ns for entry in entries)
    late = [t / 1e6 - i * 1e3 / rate for i, t in enumerate(times)]
    return percentile([value - min(late) for value in late], 0.99)


def measure(tool: Tool, script: Script, asked: Asked) -> tuple[Told, list[LogEntry]]:
    """What the tool says and what the server saw of its last `asked.count` requests (warm-up comes before)."""
    with MockProcess(script) as mock, tempfile.TemporaryDirectory() as folder:
        told = tool.run(
            Asked(mock.url, asked.rate, asked.count, asked.prompt_tokens, asked.output_tokens), Path(folder)
        )
        entries = [entry for entry in mock.log() if entry.outcome == "done" and entry.streamed]
    entries = sorted(entries, key=lambda entry: entry.t_arrival_ns)[-asked.count :]
    if len(entries) < asked.count:
        raise ToolFailedError(f"the server saw {len(entries)} of {asked.count} requests")
    return told, entries


def compare_figures(tools: list[Tool], asked: Asked) -> None:
    print(
        f"\nFigures: TTFT {TTFT_MS:g} ms, TPOT {TPOT_MS:g} ms, {TOKENS_PER_CHUNK} tokens per chunk,"
        f" {asked.output_tokens} tokens; {asked.count} requests at {asked.rate:g}/s"
    )
    print(f"{'tool':>15} {'TTFT ms':>18} {'TPOT ms':>18} {'E2E ms':>18} {'tokens':>18} {'worst error':>12}")
    worst: dict[str, float] = {}
    for tool in tools:
        try:
            told, entries = measure(tool, TRUTH, asked)
        except ToolFailedError as error:
            print(f"{tool.name:>15} failed: {error}")
            continue
        truth = truth_of(entries)
        cells, errors = [], []
        for name in FIGURES:
            said, true = getattr(told, name), getattr(truth, name)
            if said is None:
                cells.append(f"{'-':>7} ({true:8.2f})")
                continue
            errors.append(abs(said - true) / true)
            cells.append(f"{said:7.2f} ({true:8.2f})")
        worst[tool.name] = max(errors, default=math.nan)
        print(f"{tool.name:>15} {' '.join(f'{cell:>18}' for cell in cells)} {worst[tool.name]:11.1%}")
    print("In brackets: the truth of that run, by the server's log.")
    if worst:
        print("Nearest the truth, by its worst figure: " + ", ".join(sorted(worst, key=lambda name: worst[name])))
    for tool in tools:
        print(f"  {tool.name}: {tool.note}")


def compare_rates(tools: list[Tool], rates: list[float], seconds: float, output_tokens: int, end: float) -> None:
    """Each rate is offered by all whose last one held; none is begun after `end` (monotonic seconds)."""
    print(f"\nRates: even, {output_tokens} tokens per answer, a server that takes no time; {seconds:g} s each")
    print(f"{'tool':>15} {'offered/s':>10} {'arrived/s':>10} {'p99 late ms':>12}  99 % of it")
    best = dict.fromkeys((tool.name for tool in tools), 0.0)
    open_ = list(tools)
    cut_off: set[str] = set()
    for rate in rates:
        for tool in list(open_):
            if time.monotonic() > end:
                cut_off = {one.name for one in open_ if best[one.name] < rates[-1]}
                open_ = []
                break
            asked = Asked("", rate, max(2, round(rate * seconds)), 32, output_tokens)
            try:
                _, entries = measure(tool, NULL, asked)
            except ToolFailedError as error:
                print(f"{tool.name:>15} {rate:10.0f} failed: {error}", flush=True)
                open_.remove(tool)
                continue
            found = arrival_rate(entries)
            holds = found >= 0.99 * rate
            late = lateness_ms(entries, rate)
            print(f"{tool.name:>15} {rate:10.0f} {found:10.1f} {late:12.2f}  {'yes' if holds else 'no'}", flush=True)
            if holds:
                best[tool.name] = rate
            else:
                open_.remove(tool)
    order = sorted(best, key=lambda name: -best[name])
    words = [f"{name} {best[name]:.0f}/s{' (or more: out of time)' if name in cut_off else ''}" for name in order]
    print("Highest rate that holds: " + ", ".join(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--envs", type=Path, default=Path.home() / ".cache/paceline-peers", help="setup_generators.sh's"
    )
    parser.add_argument("--tools", nargs="+", help="names; default: all")
    parser.add_argument("--parts", nargs="+", choices=("figures", "rates"), default=("figures", "rates"))
    parser.add_argument("--rate", type=float, default=10.0, help="for the figures, requests/s")
    parser.add_argument("--requests", type=int, default=100, help="for the figures")
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 400, 800, 1200, 1500, 2000])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each of the rates")
    parser.add_argument("--minutes", type=float, default=10.0, help="no rate is begun later than this")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder) / "words")
        tools: list[Tool] = [Ours(), *(peer(given.envs, tokenizer) for peer in PEERS)]
        tools = [tool for tool in tools if given.tools is None or tool.name in given.tools]
        for tool in tools:
            if tool.missing():
                print(f"{tool.name} is left out: {tool.missing()}")
        tools = [tool for tool in tools if not tool.missing()]
        if "figures" in given.parts:
            compare_figures(tools, Asked("", given.rate, given.requests, 32, 32))
        if "rates" in given.parts:
            compare_rates(tools, given.rates, given.seconds, 8, end)


if __name__ == "__main__":
    main()
