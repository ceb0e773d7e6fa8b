"""Prometheus pages of several servers, joined on the load's own time."""

from __future__ import annotations

import itertools
import threading

import httpx
import pytest

from paceline.lab.experiment.server_metrics import Scraper, common, parse

PAGE = """# HELP vllm:num_requests_running Number
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"quoted\\" {name}"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.1
vllm:time_to_first_token_seconds_bucket{le="0.1"} 7
vllm:time_to_first_token_seconds_sum 1.5 1700000000
vllm:broken NaN
not a line
"""


def test_series_keep_their_names_and_labels():
    values = parse(PAGE)
    assert values["vllm:time_to_first_token_seconds_sum"] == 1.5
    assert values['vllm:num_requests_running{engine="1",model_name="m"}'] == 2.0
    assert len(values) == 5


def test_engines_are_added_and_shares_averaged():
    found = common(parse(PAGE))
    assert found == {"num_running": 5.0, "kv_usage": pytest.approx(0.3)}
    assert common({"paceline:num_requests_waiting": 4.0, "other": 1.0}) == {"num_waiting": 4.0}


def test_samples_are_on_the_loads_clock():
    clock = itertools.count(1_000, 10)
    scraped = threading.Semaphore(0)

    def fetch() -> str:
        scraped.release()
        return "paceline:num_requests_running 1\n"

    with Scraper("http://x", every_s=0.001, fetch=fetch, clock=lambda: next(clock)) as scraper:
        for _ in range(3):
            assert scraped.acquire(timeout=30)
    rows = scraper.rows(1_000)
    assert len(rows) >= 4  # the end of the load is there, too
    assert [row["t_ns"] for row in rows[:2]] == [5, 25]  # the middle of asking and answer
    assert rows[0]["common"] == {"num_running": 1.0}


def test_a_server_without_a_page_is_asked_once():
    asked = []

    def fetch() -> str:
        asked.append(1)
        raise httpx.ConnectError("nobody")

    scraper = Scraper("http://x", every_s=0.001, fetch=fetch)
    with scraper:
        assert scraper._thread is not None
        scraper._thread.join(30)
    assert scraper.supported is False
    assert asked == [1]
    assert scraper.rows(0) == []
