"""Tenants: who a key belongs to, what it may ask for, and how much it may use.

One `TenantBook` per server, used from its event loop alone. It knows nothing of HTTP, and time is passed in (monotonic
seconds).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.config import ServerConfig
from paceline.contracts.request import MIN_INT32, Usage, is_whole, shown
from paceline.contracts.slo import Slo, parse_targets
from paceline.errors import AuthError, ConfigError, ForbiddenError, RateLimitError, RequestError
from paceline.server.tenancy.buckets import Charge, TokenBucket
from paceline.server.tenancy.classes import BUILT_IN_CLASSES, DEFAULT_CLASS, ServiceClass, Terms, loosen, nearest
from paceline.server.tenancy.keys import cache_salt, find_by_key, hash_key, presented_key
from paceline.server.tenancy.tenants_file import TenantEntry, read_tenants_file

DEFAULT_TENANT = "default"
LIMITS = ("requests", "tokens", "concurrency", "waiting")
_SPAN_WEIGHT = 0.1  # of the newest request in the mean time a request takes


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant as configured. None is unlimited."""

    name: str
    classes: tuple[str, ...]  # the first is used when a request names none
    priority_ceiling: int = MIN_INT32  # lower numbers go first; none below this one
    max_concurrency: int | None = None  # sequences at once: each choice of a call is one
    max_waiting: int | None = None  # of them, those without a first token
    tokens_per_minute: int | None = None  # prompt and output; also the most at once
    requests_per_minute: int | None = None

    @property
    def has_rates(self) -> bool:
        return self.tokens_per_minute is not None or self.requests_per_minute is not None


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """A look at a tenant's account."""

    open: int  # sequences
    waiting: int  # of them, those without a first token
    refused: dict[str, int]  # calls so far, by limit


class Account:
    """What a tenant has in use."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.num_open = 0  # sequences
        self.num_waiting = 0  # of them, those without a first token
        self.refused = dict.fromkeys(LIMITS, 0)  # calls turned away, by limit
        self.tokens = _per_minute(tenant.tokens_per_minute)
        self.requests = _per_minute(tenant.requests_per_minute)
        self.mean_span_s = 1.0  # of a call, from admission to its end


def _per_minute(limit: int | None) -> TokenBucket | None:
    return None if limit is None else TokenBucket(limit / 60.0, float(limit))


class Lease:
    """A call's share of its tenant's limits, from admission to its end. Give it back with `settle` in every case."""

    def __init__(self, account: Account, num_sequences: int, charge: Charge | None, now: float) -> None:
        self.tenant = account.tenant
        self._account = account
        self._num_sequences = num_sequences
        self._charge = charge
        self._since = now
        self._waiting = True
        self.settled = False

    def started(self) -> None:
        """Its first token came: it no longer counts as waiting. Idempotent."""
        if self._waiting:
            self._waiting = False
            self._account.num_waiting -= self._num_sequences

    def settle(self, usage: Usage | int | None, now: float) -> None:
        """The call has ended, in whatever way; `usage` is what it used (prompt and output tokens, or their number;
        None: nothing, as when the engine refused it). The rest of the reservation goes back. Idempotent."""
        if self.settled:
            return
        self.settled = True
        self.started()
        account = self._account
        account.num_open -= self._num_sequences
        account.mean_span_s += _SPAN_WEIGHT * (max(0.0, now - self._since) - account.mean_span_s)
        if self._charge is not None:
            assert account.tokens is not None
            used = usage.prompt_tokens + usage.output_tokens if isinstance(usage, Usage) else usage or 0
            account.tokens.settle(self._charge, float(used))

    def headers(self, now: float) -> dict[str, str]:
        """`x-ratelimit-*` as they stand now."""
        return _headers(self._account, now)


class TenantBook:
    """All tenants and classes. `secret` keys the cache salts; without one a random one holds until the server ends."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        *,
        keys: Sequence[tuple[str, str]] = (),
        classes: dict[str, ServiceClass] | None = None,
        secret: bytes | None = None,
        from_file: bool = False,
    ) -> None:
        """`keys`: (SHA-256 of a key in hex, name of its tenant). Without any, everybody is the first tenant."""
        self.classes = dict(BUILT_IN_CLASSES if classes is None else classes)
        self.has_secret = secret is not None
        self.from_file = from_file  # its tenants are strangers to each other
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._accounts = {tenant.name: Account(tenant) for tenant in tenants}
        self._keys = [(known, self._accounts[name].tenant) for known, name in keys]
        self._anyone = None if self._keys else tenants[0]

    @classmethod
    def of(cls, settings: ServerConfig) -> TenantBook:
        """As a server with these options has it. Raises ConfigError."""
        slo = None if settings.slo is None else parse_targets(settings.slo)
        return cls.load(settings.tenants, settings.api_key, secret=settings.server_secret, slo=slo)

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        keys: Sequence[str] = (),
        *,
        secret: str | bytes | None = None,
        slo: Slo | None = None,
    ) -> TenantBook:
        """From a tenants file and plain API keys. The keys belong to the tenant "default", which the file may limit;
        with neither tenants nor keys there is that one tenant, open to everybody. `slo`: targets of the class
        "default". Raises ConfigError."""
        if isinstance(secret, str):
            secret = secret.encode()
        classes, entries = dict(BUILT_IN_CLASSES), dict[str, TenantEntry]()
        if path is not None:
            found = read_tenants_file(Path(path))
            classes, entries = found.classes, found.tenants
        if slo is not None:
            if classes[DEFAULT_CLASS] is not BUILT_IN_CLASSES[DEFAULT_CLASS]:
                raise ConfigError(
                    "the targets of the class default are given twice",
                    seen=f"slo, and [classes.{DEFAULT_CLASS}] in {path}",
                    fix="leave one of them out",
                )
            classes[DEFAULT_CLASS] = msgspec.structs.replace(classes[DEFAULT_CLASS], slo=slo)
        tenants = [_tenant(name, entry, classes) for name, entry in entries.items()]
        hashes = [(text.lower(), name) for name, entry in entries.items() for text in entry.key_sha256]
        if keys or not tenants:
            if DEFAULT_TENANT not in entries:
                tenants.append(Tenant(name=DEFAULT_TENANT, classes=_all_classes(classes)))
            hashes += [(hash_key(key), DEFAULT_TENANT) for key in keys]
        return cls(tenants, keys=hashes, classes=classes, secret=secret, from_file=bool(entries))

    # --- who

    def named(self, name: str | None) -> Tenant:
        """The tenant of that name; else whose the plain keys are, else the file's first."""
        accounts = self._accounts
        found = accounts.get(name or DEFAULT_TENANT) or accounts.get(DEFAULT_TENANT) or next(iter(accounts.values()))
        return found.tenant

    @property
    def open(self) -> bool:
        """No key is asked for."""
        return self._anyone is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tenants: they are the values of a metric's label, so no request can add one."""
        return tuple(self._accounts)

    @property
    def suggested_policy(self) -> str:
        """The order of waiting requests that keeps this book's promises: tenants that do not know each other need
        shares of their own."""
        return "fair" if len(self._accounts) > 1 else "priority"

    def authenticate(self, authorization: str | None, api_key: str | None = None) -> Tenant:
        """The tenant of `Authorization: Bearer KEY` (or of the key in `x-api-key`). Raises AuthError."""
        if self._anyone is not None:
            return self._anyone
        key = presented_key(authorization, (api_key,))
        if key is None:
            raise AuthError(
                "this server asks for an API key, and none was sent",
                expected="the header Authorization: Bearer KEY",
                fix="send a key; with the openai client: OpenAI(api_key=...)",
            )
        tenant = find_by_key(key, self._keys)
        if tenant is None:
            raise AuthError(
                "the API key is not one of this server's",
                seen=f"a key of {len(key)} characters, not shown",
                fix="check the key, or ask the server's operator for one",
            )
        return tenant

    # --- what

    def resolve(
        self,
        tenant: Tenant,
        class_name: str | None = None,
        priority: int | None = None,
        slo: Slo | None = None,
    ) -> Terms:
        """(class, priority, targets) of a request, from what it asks for.

        Raises RequestError for an unknown class, a tighter target than the class's and a priority above the tenant's
        ceiling; ForbiddenError for a class that is not the tenant's. Nothing is changed silently, but that a class's
        own priority is lowered to the ceiling: nobody asked for that number.
        """
        name = tenant.classes[0] if class_name is None else class_name
        service_class = self.classes.get(name)
        if service_class is None:
            raise RequestError(
                "unknown service class",
                param="service_class",
                seen=shown(name),
                expected=", ".join(tenant.classes),
                fix=nearest(name, tenant.classes),
            )
        if name not in tenant.classes:
            raise ForbiddenError(
                "this tenant may not use that service class",
                seen=name,
                expected=", ".join(tenant.classes),
                fix="ask for another class, or ask the server's operator for this one",
            )
        if priority is None:
            rank = max(service_class.priority, tenant.priority_ceiling)
        elif not is_whole(priority):
            raise RequestError(
                "priority is out of range",
                param="priority",
                seen=shown(priority),
                expected="a whole number within int32",
            )
        elif priority < tenant.priority_ceiling:
            raise RequestError(
                "priority is above this tenant's ceiling (lower numbers go first)",
                param="priority",
                seen=priority,
                expected=f"at least {tenant.priority_ceiling}",
                fix="leave it out, or raise the number",
            )
        else:
            rank = priority
        return Terms(service_class, rank, service_class.slo if slo is None else loosen(service_class, slo))

    def salt(self, tenant: Tenant, client_salt: bytes | str | None = None) -> bytes:
        """The cache salt of a request: no two tenants ever have equal ones, and a client's own only narrows it."""
        if isinstance(client_salt, str):
            client_salt = client_salt.encode()
        return cache_salt(self._secret, tenant.name, client_salt or b"")

    # --- how much

    def admit(
        self, tenant: Tenant, prompt_tokens: int, max_output_tokens: int, now: float, *, num_sequences: int = 1
    ) -> Lease:
        """Reserve a call's share of its tenant's limits: `prompt_tokens` + `max_output_tokens` in all, over all its
        sequences (choices times prompts). Raises RateLimitError, with nothing reserved; RequestError for a call that
        the limits could never let in."""
        account = self._accounts[tenant.name]
        tokens = prompt_tokens + max_output_tokens
        self._check_possible(tenant, tokens, num_sequences)
        refuse = _Refusal(account, now)
        if tenant.max_concurrency is not None and account.num_open + num_sequences > tenant.max_concurrency:
            refuse("concurrency", account.num_open, tenant.max_concurrency, "sequences at once", _next_end_s(account))
        if tenant.max_waiting is not None and account.num_waiting + num_sequences > tenant.max_waiting:
            refuse("waiting", account.num_waiting, tenant.max_waiting, "sequences waiting", _next_end_s(account))
        if account.requests is not None and (wait_s := account.requests.wait_s(1.0, now)):
            refuse("requests", 0, tenant.requests_per_minute, "requests per minute", wait_s)
        if account.tokens is not None and (wait_s := account.tokens.wait_s(tokens, now)):
            refuse("tokens", tokens, tenant.tokens_per_minute, "tokens per minute", wait_s)
        if account.requests is not None:
            account.requests.charge(1.0, now, final=True)
        charge = account.tokens.charge(float(tokens), now) if account.tokens is not None else None
        account.num_open += num_sequences
        account.num_waiting += num_sequences
        return Lease(account, num_sequences, charge, now)

    def _check_possible(self, tenant: Tenant, tokens: int, num_sequences: int) -> None:
        most = tenant.tokens_per_minute
        if most is not None and tokens > most:
            raise RequestError(
                "the request is larger than its tenant's tokens per minute, so it can never be let in",
                param="max_tokens",
                seen=f"{tokens} tokens: the prompt and the most it may answer",
                expected=f"at most {most}",
                fix="lower max_tokens, or shorten the prompt",
            )
        bounds = [b for b in (tenant.max_concurrency, tenant.max_waiting) if b is not None]
        if bounds and num_sequences > min(bounds):
            raise RequestError(
                "the request asks for more sequences than its tenant may have at once, so it can never be let in",
                param="n",
                seen=num_sequences,
                expected=f"at most {min(bounds)}",
                fix="lower n, or send fewer prompts in one request",
            )

    def headers(self, tenant: Tenant, now: float) -> dict[str, str]:
        """`x-ratelimit-*` for a response; empty for a tenant without rates."""
        return _headers(self._accounts[tenant.name], now)

    def usage_now(self) -> dict[str, TenantUse]:
        """What each tenant has in use."""
        return {
            name: TenantUse(open=a.num_open, waiting=a.num_waiting, refused=dict(a.refused))
            for name, a in self._accounts.items()
        }


class _Refusal:
    """Raises RateLimitError for an account."""

    def __init__(self, account: Account, now: float) -> None:
        self._account = account
        self._now = now

    def __call__(self, limit: str, seen: int, most: int | None, what: str, retry_after_s: float) -> None:
        self._account.refused[limit] += 1
        raise RateLimitError(
            f"tenant {self._account.tenant.name} is over its limit of {what}",
            limit=limit,
            retry_after_s=retry_after_s,
            headers=_headers(self._account, self._now),
            seen=seen or None,
            expected=f"at most {most}",
            fix=f"retry in {retry_after_s:.3g} s",
        )


def _next_end_s(account: Account) -> float:
    """About when one of the open calls will end: their mean time, shared among them."""
    return max(0.1, account.mean_span_s / max(1, account.num_open))


def _headers(account: Account, now: float) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, bucket in (("requests", account.requests), ("tokens", account.tokens)):
        if bucket is None:
            continue
        level = bucket.level(now)
        found[f"x-ratelimit-limit-{name}"] = f"{bucket.burst:.0f}"
        found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(level)))
        found[f"x-ratelimit-reset-{name}"] = f"{(bucket.burst - level) / bucket.rate:.3f}s"
    return found


def _all_classes(classes: dict[str, ServiceClass]) -> tuple[str, ...]:
    return (DEFAULT_CLASS, *(name for name in classes if name != DEFAULT_CLASS))


def _tenant(name: str, entry: TenantEntry, classes: dict[str, ServiceClass]) -> Tenant:
    allowed = tuple(dict.fromkeys(entry.classes)) if entry.classes else _all_classes(classes)
    ceiling = entry.priority_ceiling
    if ceiling is None:
        ceiling = min(classes[each].priority for each in allowed)
    return Tenant(
        name=name,
        classes=allowed,
        priority_ceiling=ceiling,
        max_concurrency=entry.max_concurrency,
        max_waiting=entry.max_waiting,
        tokens_per_minute=entry.tokens_per_minute,
        requests_per_minute=entry.requests_per_minute,
    )
