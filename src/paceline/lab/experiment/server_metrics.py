"""Scrapes a server's Prometheus page while a load runs, and joins the samples on the load's own time.

Any server's page is read (paceline, vLLM, SGLang, llama.cpp with --metrics); a server without one gives no samples. All
series of gauges and counters are kept under their own names, histograms as their sum and count. `COMMON` maps the
names of several servers to one word each, for charts: the rest stays as it came.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

EVERY_S = 0.5
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})?\s+(\S+)(?:\s+-?\d+)?\s*$")

COMMON: dict[str, tuple[str, ...]] = {
    "num_running": (
        "paceline:num_requests_running",
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
    ),
    "num_waiting": (
        "paceline:num_requests_waiting",
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
    ),
    "kv_usage": (
        "paceline:kv_cache_usage_perc",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
    "num_preemptions": ("paceline:num_preemptions_total", "vllm:num_preemptions_total"),
    "prefix_queries": (
        "paceline:prefix_cache_queries_total",
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    "prefix_hits": (
        "paceline:prefix_cache_hits_total",
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
    ),
    "prompt_tokens": (
        "paceline:prompt_tokens_total",
        "vllm:prompt_tokens_total",
        "sglang:prompt_tokens_total",
        "llamacpp:prompt_tokens_total",
    ),
    "output_tokens": (
        "paceline:output_tokens_total",
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "num_steps": ("paceline:engine_steps_total", "llamacpp:n_decode_total"),
    "step_rows_sum": ("paceline:step_rows_sum",),
    "step_tokens_sum": ("paceline:iteration_tokens_total_sum", "vllm:iteration_tokens_total_sum"),
    "step_tokens_count": ("paceline:iteration_tokens_total_count", "vllm:iteration_tokens_total_count"),
}
"""What a chart needs -> its name at each server. Counters stay counters: a chart takes differences."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `t_ns` counts from the start of the load, as every time of a run does; before it, it is negative."""

    t_ns: int
    values: dict[str, float]


def parse(page: str) -> dict[str, float]:
    """Series -> value, with the labels as they were written; NaN and buckets of histograms are left out."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None or match[1].endswith(("_bucket", "_created")):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if value == value:
            found[match[1] + (match[2] or "")] = value
    return found


def common(values: dict[str, float]) -> dict[str, float]:
    """The values of `COMMON` that are there; series of one name with different labels (engines, models) are added, of
    shares the mean is taken."""
    sums: dict[str, list[float]] = {}
    for series, value in values.items():
        sums.setdefault(series.partition("{")[0], []).append(value)
    found = {}
    for word, names in COMMON.items():
        for name in names:
            if name in sums:
                found[word] = sum(sums[name]) / (len(sums[name]) if word == "kv_usage" else 1)
                break
    return found


class Scraper:
    """`with Scraper(url) as scraper: load(); scraper.samples(start_ns)`; a thread of its own."""

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        every_s: float = EVERY_S,
        fetch: Callable[[], str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`url` is the server's base; its page is at /metrics. `fetch` replaces HTTP in tests."""
        self._url = url.rstrip("/") + "/metrics"
        self._headers = headers or {}
        self._every_s = every_s
        self._fetch = fetch
        self._clock = clock
        self._taken: list[tuple[int, dict[str, float]]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_failed = 0
        self.supported: bool | None = None  # None: not asked yet

    def __enter__(self) -> Scraper:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="server-metrics", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def samples(self, start_ns: int) -> list[Sample]:
        """What was seen, on the clock of a load that began at `start_ns` (monotonic)."""
        return [Sample(t_ns=t_ns - start_ns, values=values) for t_ns, values in self._taken]

    def rows(self, start_ns: int) -> list[dict[str, Any]]:
        """The same as plain values, the common names beside the server's own: what an artefact stores."""
        return [{"t_ns": s.t_ns, "common": common(s.values), "values": s.values} for s in self.samples(start_ns)]

    def _run(self) -> None:
        import httpx

        with httpx.Client(timeout=5.0, headers=self._headers, trust_env=False) as client:

            def get() -> str:
                answer = client.get(self._url)
                answer.raise_for_status()
                return answer.text

            fetch = self._fetch or get
            while True:
                self._take(fetch, httpx.HTTPError)
                if self.supported is False or self._stop.wait(self._every_s):
                    break
            if self.supported:  # the end of the load belongs to the picture
                self._take(fetch, httpx.HTTPError)

    def _take(self, fetch: Callable[[], str], failures: type[Exception]) -> None:
        before = self._clock()
        try:
            values = parse(fetch())
        except failures:
            self.num_failed += 1
            if self.supported is None:
                self.supported = False
            return
        if self.supported is None:
            self.supported = bool(values)
        # the page speaks of some moment between asking and the answer
        self._taken.append(((before + self._clock()) // 2, values))
