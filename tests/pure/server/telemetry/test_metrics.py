"""What a scrape shows: counts by tenant and class, an engine that restarts, labels nobody can multiply."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.contracts.kv import KVStats
from paceline.contracts.ports import EngineStats
from paceline.contracts.slo import Outcome, Timeline
from paceline.errors import RateLimitError
from paceline.server.telemetry.metric_table import METRICS, metrics_page
from paceline.server.telemetry.metrics import ServerMetrics
from paceline.server.tenancy.tenants import Tenant, TenantBook
from paceline.server.tenancy.usage import UsageLedger, UsageRecord


def record(**fields) -> UsageRecord:
    base = {"tenant": "alice", "service_class": "default", "outcome": Outcome.OK, "finish_reason": "stop"}
    return UsageRecord(time=0.0, request_id="x", model="m", **(base | fields))


def stats(step: int = 0, **fields) -> EngineStats:
    kv = KVStats(
        total=10, free=3, cached=2, held=4, limbo=1, reserved=0, hit_tokens=step, query_tokens=2 * step, evictions=0,
        miss_reasons={},
    )  # fmt: skip
    base = {"time": 0.0, "step": step, "num_running": 1, "num_waiting": 2, "waiting_tokens": 30, "kv": kv}
    return EngineStats(**(base | {"output_tokens": 5 * step} | fields))


def values(metrics: ServerMetrics) -> dict[tuple[str, ...], float]:
    """(sample name, sorted label values...) -> value."""
    text = metrics.render()[0].decode()
    return {
        (sample.name.removeprefix("paceline:"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics(tenants=["alice", "bob"], classes=["default", "batch"])


def test_finished_sequences_are_counted_by_tenant_and_class(metrics):
    metrics.on_finish(record(good=True, prompt_tokens=7, cached_tokens=4, output_tokens=3, kv_block_seconds=1.5))
    metrics.on_finish(record(prompt_tokens=1, finish_reason="length"))
    metrics.on_finish(record(tenant="bob", service_class="batch", counts=False, finish_reason="abort"))
    metrics.on_finish(record(tenant="bob", service_class="batch", finish_reason=None, outcome=Outcome.REJECTED))
    found = values(metrics)
    assert found["requests_total", "alice", "default"] == 2
    assert found["requests_good_total", "alice", "default"] == 1
    assert found["requests_total", "batch", "bob"] == 1  # the refused one; the one that left early does not count
    assert found["requests_refused_total", "batch", "bob", "rejected"] == 1
    assert found["requests_finished_total", "alice", "default", "length"] == 1
    assert found["requests_finished_total", "abort", "batch", "bob"] == 1
    assert found["prompt_tokens_total", "alice", "default"] == 8
    assert found["prompt_tokens_cached_total", "alice", "default"] == 4
    assert found["generation_tokens_total", "alice", "default"] == 3
    assert found["kv_block_seconds_total", "alice", "default"] == 1.5


def test_times_go_into_histograms_and_undefined_ones_do_not(metrics):
    line = Timeline(planned=0.0, arrival=0.0, chunks=[(0.1, 1), (0.3, 4), (0.35, 1)], end=0.35)
    metrics.on_finish(record(ttft_ms=100.0, tpot_ms=50.0, e2e_ms=350.0, queue_ms=1.0, prefill_ms=99.0), line)
    metrics.on_finish(record())
    found = values(metrics)
    for name, total in (
        ("time_to_first_token_seconds", 0.1),
        ("request_time_per_output_token_seconds", 0.05),
        ("e2e_request_latency_seconds", 0.35),
        ("request_queue_time_seconds", 0.001),
        ("request_prefill_time_seconds", 0.099),
    ):
        assert found[f"{name}_count", "default"] == 1
        assert found[f"{name}_sum", "default"] == pytest.approx(total)
    assert found["inter_token_latency_seconds_count", "default"] == 5
    assert found["inter_token_latency_seconds_sum", "default"] == pytest.approx(0.25)
    assert ("reclaim_seconds_count", "default") not in found
    assert found["request_prompt_tokens_count", "default"] == 2


def test_label_values_come_from_configuration_alone(metrics):
    for i in range(50):
        metrics.on_finish(record(tenant=f"t{i}", service_class=f"c{i}"))
        metrics.on_response(f"/v1/{i}", 404)
        metrics.on_response(f"/v1/internal/decisions/{i}", 200)
    found = values(metrics)
    assert found["requests_total", "other", "other"] == 50
    assert found["http_requests_total", "404", "other"] == 50
    assert found["http_requests_total", "/v1/internal", "200"] == 50


def test_gauges_are_those_of_the_last_look_and_go_with_the_engine(metrics):
    metrics.on_stats(stats(1))
    found = values(metrics)
    assert [found[name,] for name in ("engine_up", "num_requests_running", "num_requests_waiting")] == [1, 1, 2]
    assert found["num_tokens_waiting",] == 30
    assert found["kv_cache_usage_perc",] == 0.5
    assert [found["kv_blocks", state] for state in ("free", "cached", "held", "limbo")] == [3, 2, 4, 1]
    metrics.on_stats(None)
    found = values(metrics)
    assert found["engine_up",] == 0
    assert ("num_requests_running",) not in found
    assert ("kv_blocks", "free") not in found
    assert found["engine_steps_total",] == 1  # a counter stays


def test_counters_go_on_over_restarts_of_the_engine(metrics):
    seen = []
    looks = [(0, 0), (10, 0), (15, 0), (None, 0), (2, 1), (40, 1), (50, 2), (3, 2), (3, 2)]
    for step, restarts in looks:
        metrics.on_stats(None if step is None else stats(step), restarts)
        found = values(metrics)
        seen.append(found["engine_steps_total",])
        assert found["output_tokens_total",] == 5 * seen[-1]
        assert found["prefix_cache_queries_total",] == 2 * found["prefix_cache_hits_total",] == 2 * seen[-1]
    # the last engine but one had more steps than its predecessor at its first look, and the last came untold
    assert seen == [0, 10, 15, 15, 17, 55, 105, 108, 108]
    assert found["engine_restarts_total",] == 2


def test_the_last_step_is_sampled_once(metrics):
    step = {"rows": 4.0, "tokens": 9.0, "device_ms": 20.0}
    for number in (1, 1, 2):
        metrics.on_stats(stats(number, last_step=step))
    found = values(metrics)
    assert (found["step_rows_count",], found["step_rows_sum",]) == (2, 8)
    assert found["iteration_tokens_total_sum",] == 18
    assert found["step_device_seconds_sum",] == pytest.approx(0.04)


def test_facts_and_the_usage_file(tmp_path):
    ledger = UsageLedger(tmp_path / "usage.jsonl")
    ledger.record(record())
    metrics = ServerMetrics(ledger=ledger, info={"version": "1", "model": "m", "dtype": None})
    metrics.set_info(dtype="float32", device="cpu", block_size=16, num_blocks=99, unknown=1)
    found = values(metrics)
    assert found["server_info", "1", "cpu", "float32", "m"] == 1
    assert found["cache_config_info", "16", "99"] == 1
    assert found["usage_records_total", "written"] == 1
    assert found["usage_records_total", "lost"] == found["usage_errors_total",] == found["usage_records_waiting",] == 0
    ledger.close()


def test_two_servers_in_a_process_do_not_meet_and_processes_are_shown():
    one, other = ServerMetrics(), ServerMetrics()
    one.on_response("/health", 200)
    assert ("http_requests_total", "/health", "200") in values(one)
    assert ("http_requests_total", "/health", "200") not in values(other)
    assert values(one)["process_resident_memory_bytes",] > 0


def test_every_metric_of_the_table_is_in_the_registry_and_none_beside(metrics):
    families = {f.name for f in metrics.registry.collect() if f.name.startswith("paceline:")}
    assert families == {m.full_name for m in METRICS.values()}
    for family in metrics.registry.collect():
        if family.name.startswith("paceline:"):
            metric = METRICS[family.name.removeprefix("paceline:")]
            assert (family.type, family.documentation) == (metric.kind, metric.doc)


def test_tenants_show_what_they_use_and_what_they_were_refused(metrics):
    book = TenantBook([Tenant(name="alice", classes=("default",), max_concurrency=2)])
    tenant = book.authenticate(None)
    book.admit(tenant, 1, 1, 0.0).started()
    book.admit(tenant, 1, 1, 0.0)
    with pytest.raises(RateLimitError):
        book.admit(tenant, 1, 1, 0.0)
    metrics.on_tenants(book.usage_now())
    found = values(metrics)
    assert (found["tenant_sequences", "alice"], found["tenant_sequences_waiting", "alice"]) == (2, 1)
    assert found["tenant_refusals_total", "alice", "concurrency"] == 1
    assert found["tenant_refusals_total", "alice", "tokens"] == 0


def test_no_created_series(metrics):
    metrics.on_finish(record())
    assert b"_created" not in metrics.render()[0]


def test_engine_counters_are_all_fed(metrics):
    """A counter of the table that nobody feeds would read 0 for ever."""
    fields = {"num_preemptions": 1, "computed_tokens": 2, "wasted_tokens": 3, "saved_prefill_ms": 4.0}
    fields |= {"num_refused_late": 7, "num_late": 8, "num_paced_steps": 9}
    look = stats(5, **fields)
    look = msgspec.structs.replace(look, kv=msgspec.structs.replace(look.kv, evictions=6))
    metrics.on_stats(look, 1)
    found = values(metrics)
    for metric in METRICS.values():
        if metric.sampled and metric.kind == "counter":
            assert found[f"{metric.name}_total",] > 0, metric.name


def test_the_reference_page_is_the_tables():
    page = (Path(__file__).parents[4] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    table = page.split("<!-- from metric_table.py -->\n")[1].split("<!-- end -->")[0]
    assert table.strip() == metrics_page().strip(), "put what metric_table.metrics_page() says between the marks"
    for name in re.findall(r"paceline:(\w+)", page):
        known = {s for m in METRICS for s in (m, f"{m}_total", f"{m}_bucket", f"{m}_info")}
        assert name in known or name == "num_requests", f"the page names paceline:{name}, which is not there"
