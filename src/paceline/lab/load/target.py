"""The server under test as the load generator reaches it: where, with which keys, and what it is known to do."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

import certifi
import msgspec

from paceline.contracts.artefact import TargetInfo
from paceline.errors import ConfigError

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A URL taken apart. `path` is what a proxy puts before /v1; it begins with a slash or is empty."""

    host: str  # an IPv6 address has no brackets here
    port: int
    tls: bool = False
    path: str = ""

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"


def parse_url(url: str) -> Address:
    """`http://host:8000`, with or without /v1 and a path before it. Raises ConfigError."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("the server's URL cannot be read", seen=url, expected=str(error)) from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError("the server's URL cannot be read", seen=url, expected="like http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a URL must not carry a password", seen=f"a URL of {host}", fix="pass the key as api_key")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(host=host, port=port or (443 if tls else 80), tls=tls, path=path)


class Target(msgspec.Struct, kw_only=True):
    """What a probe found and what a client needs besides. Keys never show in its repr; it is not for artefacts:
    `info` is."""

    info: TargetInfo
    api_key: str | None = None
    tenant_keys: dict[str, str] = {}  # tenant -> key; others use api_key
    headers: dict[str, str] = {}  # further ones, with every request
    ca_file: str | None = None  # certificates to trust instead of the usual ones
    verify_tls: bool = True
    chunk_counts: str = ""  # how chunks tell their tokens: "paceline", "continuous" (usage), "timings", "" not at all
    max_tokens_field: str = "max_tokens"
    stream_options: bool = True  # it takes stream_options

    @property
    def address(self) -> Address:
        return parse_url(self.info.url)

    def key_of(self, tenant: str | None) -> str | None:
        return self.api_key if tenant is None else self.tenant_keys.get(tenant, self.api_key)

    def ssl_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises ConfigError for a file of certificates that cannot be read."""
        return tls_context(self.address, self.ca_file, self.verify_tls)

    def __repr__(self) -> str:
        return f"Target({self.info!r}, keys not shown)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("info", self.info)]


def tls_context(address: Address, ca_file: str | None, verify: bool) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file or certifi.where())
    except OSError as error:
        raise ConfigError("the file of certificates cannot be read", seen=ca_file, expected=str(error)) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
