"""Quality gate: no set worse than the reference by more than the margin; KL, top-1 agreement and perplexity within
their limits. Sets of refusals belong to the safety gate."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.contracts.artefact import Answer, GateResult
from paceline.lab.gates.evidence import Evidence, not_measured
from paceline.lab.gates.limits import at_least, at_most, shown
from paceline.lab.gates.spec import QualityGate
from paceline.lab.quality import Comparison, SetComparison

ANSWERS = {"not worse": Answer.PASS, "worse": Answer.FAIL, "inconclusive": Answer.INCONCLUSIVE}


def quality_gate(evidence: Evidence, gate: QualityGate) -> list[GateResult]:
    sets = [c for c in evidence.comparisons if c.what == "right answers" and (not gate.sets or c.set in gate.sets)]
    results = [set_result("quality", each, gate.max_failed_share) for each in sets]
    results += [not_measured("quality", f"set {name} was not scored", name) for name in _missing(gate.sets, sets)]
    if gate.max_kl is not None or gate.min_top1 is not None:
        if evidence.divergence is None:
            results.append(not_measured("quality", "no log probabilities were compared", "divergence"))
        else:
            results += _divergence(evidence.divergence, gate)
    if gate.max_perplexity_ratio is not None:
        results.append(_perplexity(evidence, gate.max_perplexity_ratio))
    return results or [not_measured("quality", "no set was scored against a reference")]


def set_result(gate: str, found: SetComparison, max_failed_share: float) -> GateResult:
    """A paired comparison as a gate's answer. Calls that failed are wrong answers; too many say nothing of quality."""
    failed = max(found.num_failed_reference, found.num_failed_candidate) / found.num_items
    answer, sentence = ANSWERS[found.answer], found.sentence
    if failed > max_failed_share:
        answer = Answer.INVALID
        sentence = f"{found.set}: {100 * failed:.1f} % of the calls failed, at most {100 * max_failed_share:g} % may"
    return GateResult(
        gate=gate,
        answer=answer,
        subject=f"{found.set} ({found.what})",
        limit=-found.margin,
        estimate=found.difference,
        sentence=sentence,
        evidence={
            "worse_p": found.worse_p,
            "mcnemar_p": found.mcnemar_p,
            "only_reference": found.only_reference,
            "only_candidate": found.only_candidate,
            "lost": list(found.lost),
        },
    )


def _missing(asked: Sequence[str], found: Sequence[SetComparison]) -> list[str]:
    return [name for name in asked if all(each.set != name for each in found)]


def _divergence(found: Comparison, gate: QualityGate) -> list[GateResult]:
    results = []
    for bucket in found.buckets:
        if gate.max_kl is not None:
            upper = "-" if bucket.kl_upper is None else f"{bucket.kl_upper:.3g}"
            results.append(
                GateResult(
                    gate="quality",
                    answer=at_most(bucket.kl, gate.max_kl),
                    subject=f"KL, positions {bucket.bucket}",
                    limit=gate.max_kl,
                    estimate=bucket.kl,
                    sentence=f"KL at positions {bucket.bucket}: {shown(bucket.kl)} (a lower bound; at most {upper} "
                    f"if no untold token differs by more than the told ones), at most {gate.max_kl:g} is asked",
                    evidence={"rest": bucket.rest, "kl_upper": bucket.kl_upper, "method": found.method},
                )
            )
        if gate.min_top1 is not None:
            results.append(
                GateResult(
                    gate="quality",
                    answer=at_least(bucket.top1, gate.min_top1),
                    subject=f"top-1 agreement, positions {bucket.bucket}",
                    limit=gate.min_top1,
                    estimate=bucket.top1,
                    sentence=f"top-1 agreement at positions {bucket.bucket}: "
                    f"{shown(bucket.top1, scale=100, digits=4)} %, at least {100 * gate.min_top1:g} % is asked",
                )
            )
    return results


def _perplexity(evidence: Evidence, limit: float) -> GateResult:
    ratio = evidence.perplexity_ratio
    if ratio is None:
        return not_measured("quality", "no perplexity was compared", "perplexity")
    return GateResult(
        gate="quality",
        answer=at_most(ratio, limit),
        subject="perplexity",
        limit=limit,
        estimate=ratio,
        sentence=f"perplexity over the reference's: {shown(ratio, digits=4)}, at most {limit:g} is asked",
    )
