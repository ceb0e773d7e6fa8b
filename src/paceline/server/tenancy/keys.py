"""API keys: only their SHA-256 is kept, and compared in constant time.

A key must be random and long (`new_key` makes one): its hash is not salted, so that one hash finds the tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

_HASH = re.compile(r"[0-9a-f]{64}")


def hash_key(key: str) -> str:
    """What stands in `tenants.toml` for a key: SHA-256 of its UTF-8 bytes in lower-case hex."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> tuple[str, str]:
    """A new random key (256 bits) and its hash."""
    key = "pl-" + secrets.token_urlsafe(32)
    return key, hash_key(key)


def is_key_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def find_by_key(key: str, table: Sequence[tuple[str, T]]) -> T | None:
    """The value whose hash is that of `key`, or None. Looks at the whole table whether it finds one or not."""
    wanted = hash_key(key)
    found: T | None = None
    for known, value in table:
        if hmac.compare_digest(known, wanted):
            found = value
    return found


def same_key(key: str, other: str) -> bool:
    """Are two keys equal? The time taken tells nothing about either."""
    return hmac.compare_digest(hash_key(key), hash_key(other))


def presented_key(authorization: str | None, alternatives: Iterable[str | None] = ()) -> str | None:
    """The key a client sent: `Authorization: Bearer KEY`, or else the first of the other headers that is there."""
    if authorization is not None:
        scheme, _, key = authorization.strip().partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            return key.strip()
    return next((text.strip() for text in alternatives if text and text.strip()), None)


def cache_salt(secret: bytes, tenant: str, client_salt: bytes) -> bytes:
    """HMAC-SHA256 under the server's secret of the tenant and, if there is one, the client's own salt.

    Each part is preceded by its length, so no two pairs read alike: a client cannot choose a salt that gives another
    tenant's, nor one that gives the tenant's own without salt.
    """
    name = tenant.encode()
    message = len(name).to_bytes(8, "little") + name
    if client_salt:
        message += len(client_salt).to_bytes(8, "little") + client_salt
    return hmac.new(secret, message, hashlib.sha256).digest()
