"""Under which terms a server would take the requests of a workload in: those of its own table of classes."""

from __future__ import annotations

from paceline.config import ServerConfig
from paceline.contracts.workload import PlannedRequest
from paceline.errors import AuthError, ConfigError, RequestError
from paceline.server.tenancy.tenants import TenantBook
from paceline.sim.requests import Terms, TermsOf


def server_terms(settings: ServerConfig | None = None) -> TermsOf:
    """For a server with these options; None: those it has by itself, where a request that names no class is of the
    class `default`. A workload's targets play no part: they judge a run, and no server knows them.

    Limits of tenants are left out. Raises ConfigError for a tenants file that cannot be read; the terms raise it for a
    request that this server would refuse.
    """
    book = TenantBook.of(ServerConfig() if settings is None else settings)
    made: dict[tuple[str | None, str | None, int | None], Terms] = {}

    def terms(planned: PlannedRequest) -> Terms:
        key = (planned.tenant, planned.service_class, planned.priority)
        found = made.get(key)
        if found is None:
            found = made[key] = _terms(book, planned)
        return found

    return terms


def _terms(book: TenantBook, planned: PlannedRequest) -> Terms:
    try:
        found = book.resolve(book.named(planned.tenant), planned.service_class, planned.priority)
    except (RequestError, AuthError) as error:
        raise ConfigError(
            f"this server would refuse the requests of stream {planned.stream}: {error.message}",
            seen=error.seen,
            expected=error.expected,
            fix=error.fix,
        ) from None
    timeout_s, queue_timeout_s = found.deadlines(0.0)
    return Terms(
        latency_class=found.service_class.name,
        slo=found.scheduled_for,
        priority=found.priority,
        refuse_late=found.service_class.refuse_late,
        timeout_s=timeout_s,
        queue_timeout_s=queue_timeout_s,
    )
