"""Who is asking: FastAPI dependencies for the API's tenants and for the operator.

Without an admin key the operator is whoever sits at this machine: the peer is a loopback address, the request was not
passed on by a proxy, and no web page of somebody else's sent it (its `Host` and `Origin` are loopback names too, so
neither a hostile page nor a name that was re-bound to 127.0.0.1 gets in). A local proxy that adds no header of its own
cannot be told from a local caller: behind one there must be an admin key.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from fastapi import Request

from paceline.errors import AuthError, ForbiddenError
from paceline.server.state import ServerState, server_of
from paceline.server.tenancy.keys import presented_key, same_key
from paceline.server.tenancy.tenants import Tenant

_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


async def tenant_of(request: Request) -> Tenant:
    """The tenant whose key the request carries. Raises AuthError (401)."""
    return server_of(request).tenants.authenticate(
        request.headers.get("authorization"), request.headers.get("x-api-key")
    )


async def admin_only(request: Request) -> None:
    """Let only the operator pass. Raises AuthError (401) without a key or with an unknown one, ForbiddenError (403)
    with a tenant's key, or where no key could help."""
    check_admin(request, server_of(request))


def check_admin(request: Request, state: ServerState) -> None:
    """`admin_only`, for whoever has the state at hand."""
    admin_key = state.settings.admin_key
    if not admin_key:
        _require_local(request)
        return
    headers = request.headers
    authorization, api_key = headers.get("authorization"), headers.get("x-api-key")
    key = presented_key(authorization, (api_key,))
    if key is not None and same_key(key, admin_key):
        return
    if key is None:
        raise AuthError("this is the operator's: it asks for the admin key", fix="send Authorization: Bearer ADMIN_KEY")
    if not state.tenants.open:
        state.tenants.authenticate(authorization, api_key)  # raises for a key of nobody's
        raise ForbiddenError("this is the operator's: a tenant's key does not open it", fix="send the admin key")
    raise AuthError("the admin key is wrong", seen=f"a key of {len(key)} characters, not shown")


def _require_local(request: Request) -> None:
    headers = request.headers
    fix = "start the server with --admin-key and send it as a bearer token"
    if (proxy := next((name for name in _PROXY_HEADERS if name in headers), None)) is not None:
        raise ForbiddenError("this is the operator's, and a proxy passed the request on", seen=proxy, fix=fix)
    if request.client is None or not is_loopback(request.client.host):
        raise ForbiddenError("this is the operator's, and the request came from another machine", fix=fix)
    if not is_loopback(_host_of("//" + headers.get("host", ""))):
        raise ForbiddenError("this is the operator's, and was asked for by another name than this machine's", fix=fix)
    origin = headers.get("origin")
    if (origin is not None and not is_loopback(_host_of(origin))) or headers.get("sec-fetch-site") == "cross-site":
        raise ForbiddenError("this is the operator's, and another site's page asked for it", seen=origin, fix=fix)


def is_loopback(host: str) -> bool:
    """127.0.0.0/8, ::1 or localhost."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
