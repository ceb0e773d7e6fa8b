"""`paceline gate`: pass, fail, inconclusive or invalid, from what was measured before; exit codes for CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from paceline.cli.errors import clean_errors

if TYPE_CHECKING:
    from paceline.contracts.artefact import Estimate
    from paceline.lab.gates import GateSpec, Start
    from paceline.lab.quality import SetComparison, SetScore

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True)


@app.command("check")
def check(
    spec: Annotated[Path, typer.Argument(help="TOML file: one table for each gate.")],
    run: Annotated[list[Path] | None, typer.Option("--run", help="A run of the candidate; repeats: again.")] = None,
    base: Annotated[list[Path] | None, typer.Option("--base", help="The base's run, in the same order.")] = None,
    overload: Annotated[list[Path] | None, typer.Option("--overload", help="A run above the target rate.")] = None,
    score: Annotated[list[Path] | None, typer.Option("--score", help="A stored quality score.")] = None,
    base_score: Annotated[list[Path] | None, typer.Option("--base-score", help="The reference's, same set.")] = None,
    divergence: Annotated[Path | None, typer.Option(help="Result of `paceline quality kl`.")] = None,
    perplexity: Annotated[Path | None, typer.Option(help="Result of `paceline quality perplexity`.")] = None,
    base_perplexity: Annotated[Path | None, typer.Option(help="The reference's.")] = None,
    soak: Annotated[Path | None, typer.Option(help="Folder of a soak.")] = None,
    probe: Annotated[Path | None, typer.Option(help="Result of `paceline gate prefix-timing`.")] = None,
    cold: Annotated[list[float] | None, typer.Option("--cold", help="Seconds of one cold start.")] = None,
    warm: Annotated[list[float] | None, typer.Option("--warm", help="Seconds of one warm start.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for verdict.json.")] = None,
) -> None:
    """Judge what was measured. Ends with 0 pass, 1 fail, 2 inconclusive or not measured, 3 invalid."""
    with clean_errors():
        from paceline.lab.artefact import read_run, write_verdict
        from paceline.lab.gates import Evidence, evaluate, exit_code, load_gate_spec, read_soak
        from paceline.lab.gates.probe_result import ProbeResult
        from paceline.lab.quality import Comparison

        gates = load_gate_spec(spec)
        scores = _scores(score)
        evidence = Evidence(
            runs=[read_run(path) for path in run or ()],
            base=[read_run(path) for path in base or ()],
            overload=[read_run(path) for path in overload or ()],
            scores=scores,
            comparisons=_comparisons(gates, scores, _scores(base_score)),
            divergence=_read(divergence, Comparison) if divergence else None,
            perplexity_ratio=_ratio(base_perplexity, perplexity),
            soak=read_soak(soak) if soak else None,
            probe=_read(probe, ProbeResult) if probe else None,
            starts=_starts(cold, warm),
        )
        verdict = evaluate(evidence, gates)
        for gate in verdict.gates:
            print(f"{gate.answer.value:13s} {gate.gate}: {gate.sentence}")
        print(verdict.sentence)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            write_verdict(out, verdict)
        raise typer.Exit(exit_code(verdict))


@app.command("prefix-timing")
def prefix_timing(
    url: Annotated[str, typer.Option("--url", help="The server: http://host:port.")],
    key_a: Annotated[str, typer.Option("--key-a", help="One tenant's key.")],
    key_b: Annotated[str, typer.Option("--key-b", help="Another tenant's.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model; the first one listed by default.")] = None,
    rounds: Annotated[int, typer.Option(min=12, help="Six calls each.")] = 40,
    words: Annotated[int, typer.Option(min=8, help="Of each prompt; longer makes a hit plainer.")] = 600,
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Keep the times in this file.")] = None,
) -> None:
    """Can one tenant tell by timing what another has asked? Ends with 0 pass, 1 fail, 2 inconclusive."""
    with clean_errors():
        import msgspec

        from paceline.lab.gates import EXIT_CODES
        from paceline.lab.gates.timing_probe import probe_prefix_timing

        def shown(done: int, total: int) -> None:
            if sys.stderr.isatty():
                print(f"\rround {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

        found = probe_prefix_timing(
            url, key_a, key_b, model=model, num_rounds=rounds, num_words=words, seed=seed, on_round=shown
        )
        result = found.gate_result()
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
        share = result.evidence.get("visible_order_share")
        print(f"{result.answer.value}: {result.sentence}")
        if share is not None:
            print(f"a leak that puts one tenant's time first in {100 * share:.0f} % of pairs is found 4 times in 5")
        raise typer.Exit(EXIT_CODES[result.answer])


def _scores(paths: list[Path] | None) -> list[SetScore]:
    from paceline.lab.quality import read_score

    return [read_score(path) for path in paths or ()]


def _comparisons(gates: GateSpec, scores: list[SetScore], base: list[SetScore]) -> list[SetComparison]:
    """Each set at the margin of the gate it belongs to."""
    from paceline.errors import ConfigError
    from paceline.lab.gates.spec import MARGIN_POINTS
    from paceline.lab.quality import compare_scores

    by_name = {each.set: each for each in base}
    found = []
    for each in scores:
        reference = by_name.pop(each.set, None)
        if reference is None:
            continue
        refusals = bool(each.error_rates())
        points = gates.safety.refusal_margin_points if refusals and gates.safety else None
        if points is None:
            points = gates.quality.margin_points if gates.quality and not refusals else MARGIN_POINTS
        found += compare_scores(reference, each, margin=points / 100)
    if by_name:
        raise ConfigError("a reference's score has no candidate", seen=", ".join(by_name), fix="give it with --score")
    return found


def _starts(cold: list[float] | None, warm: list[float] | None) -> list[Start]:
    from paceline.lab.gates import Start

    return [Start(kind=kind, seconds=s) for kind, all_s in (("cold", cold), ("warm", warm)) for s in all_s or ()]


def _ratio(base: Path | None, candidate: Path | None) -> Estimate | None:
    from paceline.errors import ConfigError
    from paceline.lab.quality import Perplexity
    from paceline.lab.quality.perplexity import ratio

    if base is None or candidate is None:
        if base is not candidate:
            raise ConfigError("a perplexity is compared with the reference's", fix="give both, or none")
        return None
    return ratio(_read(base, Perplexity), _read(candidate, Perplexity))


def _read(path: Path, kind: type[T]) -> T:
    import msgspec

    from paceline.errors import LabError

    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise LabError(f"not a stored {kind.__name__}", seen=f"{path}: {error}"[:300]) from None
