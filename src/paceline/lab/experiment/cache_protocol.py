"""The state of the server's prefix cache is part of a measured point: what was forgotten, what was filled in, and
whether the hits that were measured are those the plan asks for.

    salt     every prompt of the run begins with text of its own, so that no earlier run's cache helps
    flush    the server forgets its cached prefixes, where it has a call for that
    prime    each shared prefix is asked once before the load, so that the window sees a warm cache
    verify   cached / prompt tokens of the window against what the spec expects; outside it, the run is invalid

A step the server cannot do is written down as not done, never skipped in silence.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from paceline.contracts.artefact import RequestRecord, Window
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import Endpoint, PlannedRequest
from paceline.errors import LabError
from paceline.lab.load import LoadOptions, Target, run_load
from paceline.lab.workload import Content, Plan, WorkloadSpec, primers
from paceline.lab.workload.reuse import reusable_tokens

_TIMEOUT_S = 60.0
_BLOCK_TOKENS = 16  # servers reuse whole blocks: the last part of a shared prefix is computed again


def prepare_cache(
    target: Target, spec: WorkloadSpec, plan: Plan, content: Content, load: LoadOptions
) -> dict[str, Any]:
    """Flushes and primes as the spec says. Returns what was done, for `RunInfo.cache`."""
    steps = spec.cache.protocol
    done: dict[str, Any] = {"protocol": list(steps), "salted": "salt" in steps}
    if "flush" in steps:
        done["flushed"], why = flush(target)
        if why:
            done["not_flushed_because"] = why
    if "verify" in steps and target.info.cached_tokens and any(s.endpoint is Endpoint.CHAT for s in spec.streams):
        done["template_tokens"] = template_head(target)
    if "prime" in steps:
        done |= _prime(target, plan, content, load)
    return done


def flush(target: Target) -> tuple[bool, str]:
    """(done, why not)."""
    path = target.info.reset_prefix_cache
    if not path:
        return False, f"a server of kind {target.info.kind} has no call that forgets cached prefixes"
    try:
        answer = httpx.post(
            target.info.url.rstrip("/") + path,
            headers=bearer(target),
            timeout=_TIMEOUT_S,
            verify=target.ssl_context() or True,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        return False, f"{path} cannot be called: {type(error).__name__}"
    return (True, "") if answer.is_success else (False, f"{path} answered {answer.status_code}")


def template_head(target: Target) -> int:
    """Tokens that the chat template puts before every first message, as far as the cache keeps them: what three
    requests with nothing in common have cached. 0 where it cannot be seen."""
    found = []
    for _ in range(3):
        # as the load's prompts, with a system message of their own: a template's default one is no shared prefix then
        messages = [{"role": role, "content": _own_words()} for role in ("system", "user")]
        body = {"model": target.info.model, "messages": messages, "max_tokens": 1}
        try:
            answer = httpx.post(
                target.info.url.rstrip("/") + "/v1/chat/completions",
                json=body,
                headers=bearer(target),
                timeout=_TIMEOUT_S,
                verify=target.ssl_context() or True,
                trust_env=False,
            )
            details = answer.json()["usage"].get("prompt_tokens_details") or {}
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return 0
        found.append(int(details.get("cached_tokens") or 0))
    return min(found[1:])


def _own_words() -> str:
    return " ".join(secrets.token_hex(3) for _ in range(24))


def bearer(target: Target) -> dict[str, str]:
    """Headers that every call to the server carries. Not for artefacts: a key may be among them."""
    key = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    return {**target.headers, **key}


def _prime(target: Target, plan: Plan, content: Content, load: LoadOptions) -> dict[str, Any]:
    requests = primers(plan)
    if not requests:
        return {"num_primed": 0, "not_primed_because": "the workload shares no prefixes"}
    before = Plan(requests=tuple(requests), span_s=0.0, closed_loop=True)
    quiet = msgspec.structs.replace(load, num_processes=min(1, load.num_processes or 0), max_concurrency=None)
    records = run_load(target, before, content, quiet).records
    num_ok = sum(record.outcome in (Outcome.OK, Outcome.TRUNCATED) for record in records)
    if not num_ok:
        reasons = sorted({record.reason for record in records if record.reason})
        raise LabError("no request that fills the prefix cache came back", seen=reasons[:3], fix="look at the server")
    return {"num_primed": num_ok, "num_prefixes": len(requests)}


def implied_hit(
    requests: Sequence[PlannedRequest], records: Sequence[RequestRecord], done: dict[str, Any]
) -> tuple[float | None, float | None]:
    """(most, least) share of these records' prompt tokens that the plan lets come from the cache.

    Most: all that an earlier request of the plan had, for an endless cache of single tokens, and the template's head.
    Least: prefixes that were primed, without their last incomplete block, and the head of prompts that share nothing;
    what is only shared among the load's own requests may have been dropped, or asked for by two at once. (None, None)
    where the plan cannot say: later turns hold what was answered."""
    asked = sum(r.prompt_tokens for r in records)
    if not asked or any(r.turn for r in requests):
        return None, None
    primed, head = bool(done.get("num_primed")), int(done.get("template_tokens", 0))
    apart = [msgspec.structs.replace(r, tenant=None) for r in requests]  # not every server keeps tenants apart
    reusable = dict(zip((r.id for r in apart), reusable_tokens(apart, primed=primed, block_tokens=1), strict=True))
    shares = {r.id for r in requests if r.num_prefix_tokens or r.shared}
    most = sum(reusable[r.id][0] + head for r in records) / asked
    least = 0
    for r in records:
        if r.id not in shares:
            least += head
        elif primed:
            least += max(0, r.num_prefix_asked - _BLOCK_TOKENS)
    return min(1.0, most), least / asked


def verify_cache(
    done: dict[str, Any],
    spec: WorkloadSpec,
    requests: Sequence[PlannedRequest],
    records: Sequence[RequestRecord],
    window: Window,
) -> dict[str, Any]:
    """Adds what was measured, and whether it is what was expected: `ok` None means that nothing can be said.
    `requests`: the plan that `records` are of."""
    counted = [
        r for r in records if window.start_ns <= r.t_plan_ns < window.end_ns and r.cached_tokens >= 0 < r.prompt_tokens
    ]
    asked = sum(r.prompt_tokens for r in counted)
    measured = sum(r.cached_tokens for r in counted) / asked if asked else None
    found = {**done, "hit": measured}
    if "verify" not in spec.cache.protocol:
        return found
    expect = spec.cache.expect_hit
    tolerance = expect.tol if expect else 0.02
    target: float | None
    low: float | None
    if expect is not None and expect.target is not None:
        target, low = expect.target, expect.target
    else:
        target, low = implied_hit(requests, counted, done)
    found |= {"expect_hit": target, "tolerance": tolerance, "ok": None}
    if measured is None:
        return {**found, "sentence": "the server does not say what came from its cache: not verified"}
    if target is None:
        return {**found, "sentence": f"{measured:.1%} of prompt tokens came from the cache; the plan implies no figure"}
    assert low is not None, "both ends or none"
    found["ok"] = low - tolerance - 1e-9 <= measured <= target + tolerance + 1e-9
    words = "as expected" if found["ok"] else "which breaks the cache protocol"
    wanted = f"{target:.1%}" if target - low <= tolerance else f"{low:.1%} to {target:.1%}"
    found["sentence"] = (
        f"{measured:.1%} of prompt tokens came from the cache, {wanted} within {tolerance:.1%} expected: {words}"
    )
    return found
