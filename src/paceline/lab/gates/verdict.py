"""All gates together. A verdict passes when every gate that is required passes.

Order of the answer: a gate that fails, fails the verdict; else one that is invalid makes it invalid; else one that is
inconclusive, or required and not measured, makes it inconclusive. Nothing but a pass is a pass.

Several gates: to pass, all must pass, each by its own interval; for that no correction is needed (an intersection-union
test, Berger 1982). To fail is to claim "worse", and with many gates one such claim comes by chance: those that rest on
a p-value hold after Holm's correction over all of them, else they are inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.contracts.artefact import Answer, GateResult, Verdict
from paceline.lab.gates.cold_start import cold_start_gate
from paceline.lab.gates.cost import cost_gate, energy_gate
from paceline.lab.gates.evidence import Evidence
from paceline.lab.gates.goodput import goodput_gate
from paceline.lab.gates.latency import tpot_gate, ttft_gate
from paceline.lab.gates.quality_gate import quality_gate
from paceline.lab.gates.safety import safety_gate
from paceline.lab.gates.spec import GateSpec
from paceline.lab.gates.stability import stability_gate
from paceline.lab.stats.paired import holm

EXIT_CODES = {
    Answer.PASS: 0,
    Answer.FAIL: 1,
    Answer.INCONCLUSIVE: 2,
    Answer.NOT_MEASURED: 2,
    Answer.INVALID: 3,
}
"""For CI. Not measured counts only where it is required."""


def evaluate(evidence: Evidence, spec: GateSpec) -> Verdict:
    """The verdict on one candidate, gates in the order of mission and of GATES. Raises LabError for evidence that does
    not belong together."""
    found: list[GateResult] = []
    if spec.quality is not None:
        found += quality_gate(evidence, spec.quality)
    if spec.ttft is not None:
        found += ttft_gate(evidence, spec.ttft)
    if spec.tpot is not None:
        found += tpot_gate(evidence, spec.tpot)
    if spec.goodput is not None:
        found += goodput_gate(evidence, spec.goodput)
    if spec.stability is not None:
        found += stability_gate(evidence.soak, spec.stability)
    if spec.cold_start is not None:
        found += cold_start_gate(evidence, spec.cold_start)
    if spec.cost is not None:
        found += cost_gate(evidence, spec.cost)
    if spec.energy is not None:
        found += energy_gate(evidence, spec.energy)
    if spec.safety is not None:
        found += safety_gate(evidence, spec.safety)
    found = [_with_note(result, evidence.notes.get(result.gate)) for result in found]
    return conclude(corrected(found, spec.alpha), required={g for g in spec.asked if spec.is_required(g)})


def _with_note(result: GateResult, note: str | None) -> GateResult:
    """Why there is nothing, where whoever gathered the evidence knows."""
    if note is None or result.answer is not Answer.NOT_MEASURED:
        return result
    return msgspec.structs.replace(result, sentence=f"{result.sentence} ({note})")


def corrected(results: Sequence[GateResult], alpha: float) -> list[GateResult]:
    """Holm over every result that carries `worse_p`: a fail whose adjusted p is not below alpha is inconclusive."""
    family = [i for i, r in enumerate(results) if r.evidence.get("worse_p") is not None]
    adjusted = dict(zip(family, holm([float(results[i].evidence["worse_p"]) for i in family]), strict=True))
    changed = []
    for index, result in enumerate(results):
        p = adjusted.get(index)
        if p is None:
            changed.append(result)
            continue
        evidence = {**result.evidence, "worse_p_holm": p}
        answer, sentence = result.answer, result.sentence
        if answer is Answer.FAIL and p >= alpha:
            answer = Answer.INCONCLUSIVE
            sentence += f"; among {len(family)} gates this may be chance (Holm p {p:.3f})"
        changed.append(msgspec.structs.replace(result, answer=answer, sentence=sentence, evidence=evidence))
    return changed


def conclude(results: Sequence[GateResult], *, required: set[str]) -> Verdict:
    """`required`: gates that may not be left unmeasured."""
    missing = [r for r in results if r.answer is Answer.NOT_MEASURED and r.gate in required]
    by_answer = {answer: [r for r in results if r.answer is answer] for answer in Answer}
    if by_answer[Answer.FAIL]:
        answer, deciding = Answer.FAIL, by_answer[Answer.FAIL]
    elif by_answer[Answer.INVALID]:
        answer, deciding = Answer.INVALID, by_answer[Answer.INVALID]
    elif by_answer[Answer.INCONCLUSIVE] or missing:
        answer, deciding = Answer.INCONCLUSIVE, [*by_answer[Answer.INCONCLUSIVE], *missing]
    elif by_answer[Answer.PASS]:
        answer, deciding = Answer.PASS, by_answer[Answer.PASS]
    else:
        answer, deciding = Answer.NOT_MEASURED, list(results)
    return Verdict(answer=answer, sentence=_sentence(answer, deciding, results), gates=tuple(results))


def _sentence(answer: Answer, deciding: Sequence[GateResult], results: Sequence[GateResult]) -> str:
    if answer is Answer.PASS:
        num_open = len(results) - len(deciding)
        tail = f", {num_open} not measured and not required" if num_open else ""
        return f"pass: {len(deciding)} of {len(results)} checks{tail}"
    if not deciding:
        return "nothing was measured"
    more = f" (and {len(deciding) - 1} more)" if len(deciding) > 1 else ""
    return f"{answer}: {deciding[0].gate}: {deciding[0].sentence}{more}"


def exit_code(verdict: Verdict) -> int:
    """0 pass, 1 fail, 2 inconclusive or not measured, 3 invalid."""
    return EXIT_CODES[verdict.answer]
