"""From a stored run to a PointResult: its figures, and whether it says anything about the server."""

from __future__ import annotations

from pathlib import Path

from paceline.lab.artefact import StoredRun
from paceline.lab.experiment.figures import figures_of
from paceline.lab.experiment.rate_search import level_of
from paceline.lab.experiment.results import PointResult
from paceline.lab.experiment.schedule import Point


def point_result(
    point: Point, run: StoredRun, *, folder: Path, order: int, wall_s: float, dead: str = "", tail: tuple[str, ...] = ()
) -> PointResult:
    """`dead`: how the server ended during the load, "" if it lives; `tail`: the last lines of its log."""
    status, reason = verdict_on(run, dead)
    level = level_of(run, point.rate_rps or 0.0)
    if status == "ok" and point.purpose == "search" and not level.num_requests:
        status, reason = "invalid", "no request counts: the client left all of them in time"
    return PointResult(
        id=point.id,
        node=point.node,
        repeat=point.repeat,
        order=order,
        rate_rps=point.rate_rps,
        seed=point.seed,
        purpose=point.purpose,
        path=str(run.path.relative_to(folder)),
        status=status,
        reason=reason,
        log_tail=(tail or (dead,)) if dead else (),
        started=run.info.created,
        wall_s=wall_s,
        num_requests=level.num_requests,
        num_good=level.num_good,
        n_eff=level.n_eff,
        window_s=level.window_s,
        figures=figures_of(run.info, run.metrics),
        cautions=run.metrics.cautions,
    )


def verdict_on(run: StoredRun, dead: str = "") -> tuple[str, str]:
    """(status, why)."""
    if dead:
        return "invalid", dead
    if run.info.status != "complete":
        return "partial", "it was interrupted"
    for caution in run.metrics.cautions:
        if caution.invalidates:
            return "invalid", caution.sentence
    return "ok", ""


def failed_point(
    point: Point, *, order: int, reason: str, tail: tuple[str, ...] = (), wall_s: float = 0.0
) -> PointResult:
    """A point of which there is no run: the server did not start, or could not be measured at all."""
    return PointResult(
        id=point.id,
        node=point.node,
        repeat=point.repeat,
        order=order,
        rate_rps=point.rate_rps,
        seed=point.seed,
        purpose=point.purpose,
        status="invalid",
        reason=reason,
        log_tail=tail,
        wall_s=wall_s,
    )
