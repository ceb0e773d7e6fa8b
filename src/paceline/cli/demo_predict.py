"""The ladder foretold: steps of this machine timed once, then every point simulated with the same requests.

What is simulated is the engine's own scheduler, KV manager and prefix cache over the times of `paceline calibrate`, as
a server that shares the machine with its client took them before the ladder; so what the tables set side by side is a
prediction that saw none of the ladder's measurements.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.errors import EngineError, PacelineError

if TYPE_CHECKING:
    from paceline.contracts.artefact import Estimate
    from paceline.lab.experiment.results import ExperimentResult
    from paceline.lab.experiment.spec import Loaded

ROUNDS = 3  # of each size of step: the fewest that have a median
FIGURES = {"goodput_rps": ("good/s", 1.0), "ttft_p50_s": ("TTFT p50 ms", 1e3), "tpot_p50_s": ("TPOT p50 ms", 1e3)}


@dataclass(frozen=True)
class Foretold:
    """One point of the ladder: what was measured and what was simulated, by name of FIGURES. NaN: there is no value."""

    node: str
    rate_rps: float
    measured: dict[str, float]
    simulated: dict[str, float]


def time_steps(options: Mapping[str, Any], report: Path) -> Path:
    """A calibration of this machine for these options, in `report`; in a process of its own, which loads the model.
    Raises EngineError where it fails."""
    from paceline.lab.experiment import paceline_argv

    file, log = report / "calibration.json", report / "calibration.log"
    flags = ("--out", str(file), "--rounds", str(ROUNDS), "--attempts", "1")
    with log.open("w") as out:
        done = subprocess.run(
            paceline_argv(options, flags, command="calibrate"), stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise EngineError("steps could not be timed", seen=f"exit status {done.returncode}", fix=f"see {log}")
    return file


def as_served(timed: Path, journal: Path, run: Path, report: Path) -> Path:
    """The calibration `timed` with the steps that a server took under load, client beside it: in `report` too. As it
    was, and with the reason on standard error, where they cannot be used."""
    from paceline.assemble.calibrate_served import calibrate_served

    out = report / "served.json"
    try:
        calibrate_served(timed, [journal], [run], out=out)
    except PacelineError as error:
        print(f"the forecast is of an idle machine: {error}", file=sys.stderr, flush=True)
        return timed
    return out


def foretell(loaded: Loaded, result: ExperimentResult, calibration: Path) -> Iterator[Foretold]:
    """Every point that was measured and whose steps are those that were timed: other number types take other times."""
    from paceline.assemble.sim import simulate, simulated_engine
    from paceline.config import load_config
    from paceline.lab.experiment.figures import figures_of
    from paceline.lab.metrics import compute
    from paceline.lab.workload import load_spec, scale

    assert isinstance(loaded.workload, dict), "the ladder's workload stands in its spec"
    workload = load_spec(loaded.workload)
    for node in result.nodes:
        try:
            engine = simulated_engine(load_config(flags=dict(node.options)), calibration=calibration)
        except PacelineError:
            continue
        for point in result.points_of(node.name):
            if point.status != "ok" or point.rate_rps is None:
                continue
            load = scale(workload, rate=point.rate_rps)
            simulated = simulate(engine, load, seed=point.seed)
            figures = figures_of(simulated.info, compute(simulated.info, simulated.records))
            yield Foretold(node.name, point.rate_rps, _values(point.figures), _values(figures))


def _values(figures: Mapping[str, Estimate]) -> dict[str, float]:
    found = {name: figures.get(name) for name in FIGURES}
    return {name: math.nan if e is None or e.value is None else e.value for name, e in found.items()}


def table(foretold: Sequence[Foretold]) -> list[str]:
    """Lines: each point, measured and simulated, and how far they lie apart."""
    heads = [f"{title}: measured, simulated" for title, _ in FIGURES.values()]
    rows = [
        [
            f"{point.node} at {point.rate_rps:g}/s",
            *(
                f"{_short(factor * point.measured[name])}, {_short(factor * point.simulated[name])}"
                for name, (_, factor) in FIGURES.items()
            ),
        ]
        for point in foretold
    ]
    apart = ["apart, in the median", *(_apart(foretold, name) for name in FIGURES)]
    cells = [["simulated beside measured", *heads], *rows, apart]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]


def plan_lines(loaded: Loaded, result: ExperimentResult, calibration: Path, report: Path) -> list[str]:
    """What the planner would run here for requests of the ladder's lengths, beside the best that was measured.

    The ladder holds its rows few on purpose; a plan chooses them."""
    from paceline.assemble.plan import Asked
    from paceline.assemble.plan import plan as make
    from paceline.assemble.plan_words import sentence
    from paceline.lab.workload import load_spec, make_plan, scale

    workload = load_spec(loaded.workload)
    best = result.node(result.best) if result.best else result.nodes[0]
    requests = make_plan(scale(workload, rate=max(loaded.spec.rates)), seed=loaded.spec.experiment.seed).requests
    lengths = report / "lengths.csv"
    rows = [f"{r.num_input_tokens},{r.num_output_tokens}" for r in requests]
    lengths.write_text("\n".join(["input,output", *rows]) + "\n")
    slo = workload.slo["default"]
    shared = sum(r.num_prefix_tokens for r in requests) / sum(r.num_input_tokens for r in requests)
    cached = shared if best.options.get("enable_prefix_caching") else 0.0
    found = make(
        Asked(
            model=str(best.options.get("model", "smollm2-135m")),
            input=f"file={lengths},column=input",
            output=f"file={lengths},column=output",
            slo=f"ttft={slo.ttft_s}s,tpot={slo.tpot_s}s,share={slo.share}",
            cached_share=cached,
            calibration=str(calibration),
        )
    )
    points = [p for p in result.points_of(best.name) if p.status == "ok"]
    measured = max((p.figures["goodput_rps"].value or 0.0 for p in points), default=0.0)
    lines = [f"plan for this machine: {sentence(found)}"]
    if found.chosen is not None:
        lines.append(f"  with {found.chosen.chunk} prompt tokens a step, {cached:.0%} of prompt tokens from the cache")
    rows = best.options["max_num_seqs"]
    return [*lines, f"  measured: {measured:.3g} good requests/s at most ({best.name}, {rows} rows)"]


def choice(foretold: Sequence[Foretold]) -> list[str]:
    """A line: which configuration the simulator would have chosen, by goodput summed over the rates, and what
    share of the best measured goodput that choice gives away (its regret). None for fewer than two configurations."""
    nodes = list(dict.fromkeys(point.node for point in foretold))
    if len(nodes) < 2:
        return []

    def of(node: str, side: str) -> float:
        values: list[float] = [getattr(point, side)["goodput_rps"] for point in foretold if point.node == node]
        return sum(value for value in values if not math.isnan(value))

    simulated, measured = (max(nodes, key=lambda node: of(node, side)) for side in ("simulated", "measured"))
    most = of(measured, "measured")
    regret = 1.0 - of(simulated, "measured") / most if most > 0 else 0.0
    return [f"best simulated: {simulated}; best measured: {measured}; goodput regret of the choice {regret:.1%}"]


def _apart(foretold: Sequence[Foretold], name: str) -> str:
    off = [
        abs(point.simulated[name] / point.measured[name] - 1)
        for point in foretold
        if point.measured[name] > 0 and not math.isnan(point.simulated[name])
    ]
    return f"{median(off):.0%} of {len(off)}" if off else "-"


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"
