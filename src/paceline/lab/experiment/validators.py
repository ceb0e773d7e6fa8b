"""The validators that the classes of a workload name, run over a load's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paceline.contracts.artefact import RequestRecord
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest, SloClass
from paceline.lab import quality
from paceline.lab.load import Validate
from paceline.lab.quality.validity import is_whole

WHOLE = "not_truncated"


def validators_of(classes: Sequence[SloClass]) -> Validate | None:
    """What `run_load` calls for each answer; None when no class looks at contents, for then no texts need to be kept:
    whether an answer is whole is seen in its record, see `mark_whole`. Raises ConfigError for no validator's name."""
    quality.check_names(classes)
    return quality.validate if any(set(terms.validators) - {WHOLE} for terms in classes) else None


def mark_whole(
    classes: Sequence[SloClass], requests: Iterable[PlannedRequest], records: Iterable[RequestRecord]
) -> None:
    """Writes `not_truncated` into the records of classes that ask for it: the same that `quality.validate` says."""
    asking = {terms.name for terms in classes if WHOLE in terms.validators}
    exact: Mapping[int, bool] = {r.id: r.exact_output for r in requests} if asking else {}
    for record in records:
        if record.slo_class in asking and record.outcome is Outcome.OK:
            record.valid = {**record.valid, WHOLE: is_whole(record.reason, exact_length=exact[record.id])}
