"""Each sequence is metered once, whatever became of it; leases and salts are those of the tenant."""

import asyncio
import subprocess
import sys
import time

from tests.fakes.api_server import api_server, run, text_ids

from paceline.contracts.request import Request
from paceline.contracts.slo import Outcome
from paceline.server.tenancy.tenants import Tenant, TenantBook


def spy(server):
    """Requests as the engine gets them."""
    seen: list[Request] = []
    submit_all = server.engine.submit_all

    def note(requests):
        seen.extend(requests)
        submit_all(requests)

    server.engine.submit_all = note
    return seen


def test_a_record_for_each_choice_with_what_it_used():
    async def body():
        async with api_server(scripts={1: text_ids("four")}) as server:
            answer = (await server.complete(["ab", "c"], n=2, seed=1, service_class="batch")).json()
            assert [r.choice for r in sorted(server.records, key=lambda r: r.choice)] == [0, 1, 2, 3]
            for record in server.records:
                assert record.request_id == answer["id"]
                assert (record.tenant, record.service_class, record.model) == ("default", "batch", "toy")
                assert (record.outcome, record.finish_reason, record.output_tokens) == (Outcome.OK, "stop", 5)
                assert record.ttft_ms is not None
                assert record.good
            assert sum(r.prompt_tokens for r in server.records) == 2 * answer["usage"]["prompt_tokens"]

    run(body)


def test_a_call_that_is_turned_away_has_records_and_a_mistake_has_none():
    limits = Tenant(name="one", classes=("default",), max_concurrency=2)

    async def body():
        async with api_server(tenants=TenantBook([limits], secret=b"s")) as server:
            gate = server.new_gate()
            running = asyncio.create_task(server.complete("a", n=2, max_tokens=2, ignore_eos=True))
            while server.state.engine.num_open < 2:
                await asyncio.sleep(0.001)
            refused = await server.complete("b", n=2, max_tokens=2)
            assert refused.status_code == 429
            assert [r.outcome for r in server.records] == [Outcome.REJECTED] * 2
            assert (await server.complete("b", temperature=-1)).status_code == 400
            gate.open()
            assert (await running).status_code == 200
            assert [r.outcome for r in server.records] == [Outcome.REJECTED] * 2 + [Outcome.OK] * 2
            assert (await server.complete("b", n=2, max_tokens=2)).status_code == 200

    run(body)


def test_metrics_and_ledger_agree_with_usage():
    async def body():
        async with api_server() as server:
            answers = [(await server.complete("abc", max_tokens=k, ignore_eos=True)).json() for k in (1, 2, 3)]
            text = server.state.metrics.render()[0].decode()
            generated = [line for line in text.splitlines() if line.startswith("paceline:generation_tokens_total")]
            assert sum(float(line.rsplit(" ", 1)[1]) for line in generated) == 6
            assert sum(r.output_tokens for r in server.records) == sum(a["usage"]["completion_tokens"] for a in answers)

    run(body)


def test_the_engine_gets_what_the_class_and_the_tenant_say():
    async def body():
        async with api_server() as server:
            seen = spy(server)
            await server.complete("a", n=2, max_tokens=3, service_class="interactive", timeout=60, cache_salt="mine")
            await server.complete("a", max_tokens=3, priority=7)
            first, sibling, second = seen
            assert first.sampling.max_tokens == 3
            assert (first.latency_class, first.priority) == ("interactive", -10)
            assert (sibling.leader, sibling.choice) == (first.request_id, 1)
            assert first.deadline is not None
            assert 59 < first.deadline - first.arrival <= 60
            assert (second.priority, second.deadline) == (7, None)
            assert first.slo.ttft_s == 0.5
            book = server.state.tenants
            tenant = book.authenticate(None)
            assert first.cache_salt == sibling.cache_salt == book.salt(tenant, "mine")
            assert second.cache_salt == book.salt(tenant)
            assert first.cache_salt != second.cache_salt

    run(body)


def test_salts_keep_prefixes_apart():
    async def body():
        async with api_server() as server:
            prompt = "a prompt of some blocks"

            async def cached(**fields):
                answer = (await server.complete(prompt, max_tokens=1, **fields)).json()
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert await cached() == 0
            assert await cached() > 0
            assert await cached(cache_salt="other") == 0
            assert await cached(cache_salt="other") > 0

    run(body)


def test_clocks_of_processes_are_one():
    """Arrivals are stamped here and compared with the engine's clock there."""
    code = "import time; from paceline.engine import WallClock; print(repr(WallClock().now()))"
    before = time.monotonic()
    there = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert before <= there <= time.monotonic()
