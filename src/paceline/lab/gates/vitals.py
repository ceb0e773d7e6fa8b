"""A server's vital signs at rest: memory, open files, KV blocks, restarts. Read from its /metrics, or of a process.

Names of paceline, vLLM, SGLang and llama.cpp are known; any server whose page has the usual `process_*` gauges tells
memory and files. A pid (on this host) covers servers without a page: its children are counted in.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import httpx

from paceline.errors import LabError
from paceline.lab.gates.soak_result import Checkpoint

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_STATE = re.compile(r'\bstate="([^"]*)"')
_BUSY = (
    "paceline:num_requests_running",
    "paceline:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
)
_USAGE = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)
_BLOCKS = "paceline:kv_blocks"


def read_page(text: str) -> dict[str, float]:
    """Sum of each metric over its labels, and `name{state}` where a series has a label of that name."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found[match[1]] = found.get(match[1], 0.0) + value
        state = _STATE.search(match[2] or "")
        if state:
            key = f"{match[1]}{{{state[1]}}}"
            found[key] = found.get(key, 0.0) + value
    return found


class Vitals:
    """Reads one server. `pid` on this host is read beside the page, and wins for memory and files."""

    def __init__(
        self, url: str, *, api_key: str | None = None, pid: int | None = None, timeout_s: float = 10.0
    ) -> None:
        self._pid = pid
        self._client = httpx.Client(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout_s,
            trust_env=False,
        )
        self.sources: dict[str, str] = {}

    def close(self) -> None:
        self._client.close()

    def page(self) -> dict[str, float] | None:
        """The metrics page, or None where the server has none. Raises LabError if it does not answer at all."""
        try:
            answer = self._client.get("/metrics")
            if answer.status_code == 200:
                return read_page(answer.text)
            self._client.get("/v1/models")  # alive, without a page
        except httpx.HTTPError as error:
            raise LabError("the server does not answer", seen=type(error).__name__) from None
        return None

    def wait_idle(self, most_s: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Until nothing runs or waits; False if that did not come. A server that does not tell gets `most_s`, at most
        5 s, to settle. Raises LabError."""
        end = time.monotonic() + most_s
        while True:
            page = self.page()
            busy = None if page is None else [page[name] for name in _BUSY if name in page]
            if not busy:
                sleep(min(most_s, 5.0))
                return True
            if sum(busy) == 0:
                return True
            if time.monotonic() >= end:
                return False
            sleep(0.1)

    def checkpoint(self, t_s: float, *, idle: bool) -> Checkpoint:
        """Raises LabError if the server, or the process, is gone."""
        page = self.page() or {}
        rss, fds, started = (page.get(name) for name in _PROCESS)
        self._note(rss, fds, "/metrics")
        if self._pid is not None:
            rss, fds, started = self._process(self._pid)
            self._note(rss, fds, f"process {self._pid} and its children")
        states = {state: page.get(f"{_BLOCKS}{{{state}}}") for state in ("free", "cached", "held", "limbo")}
        known = states["held"] is not None
        usage = next((page[name] for name in _USAGE if name in page), None)
        if known or usage is not None:
            self.sources["KV blocks"] = "/metrics"
        return Checkpoint(
            t_s=t_s,
            idle=idle,
            rss_bytes=rss,
            num_fds=fds,
            num_held_blocks=(states["held"] or 0) + (states["limbo"] or 0) if known else None,
            num_free_blocks=(states["free"] or 0) + (states["cached"] or 0) if known else None,
            kv_usage=usage,
            num_restarts=page.get("paceline:engine_restarts_total"),
            started_at=started,
        )

    def _note(self, rss: float | None, fds: float | None, source: str) -> None:
        if rss is not None:
            self.sources["rss"] = source
        if fds is not None:
            self.sources["open files"] = source

    def _process(self, pid: int) -> tuple[float | None, float | None, float | None]:
        import psutil

        try:
            own = psutil.Process(pid)
            family = [own, *own.children(recursive=True)]
            started = own.create_time()
        except psutil.Error:
            raise LabError("the server's process is gone", seen=f"pid {pid}") from None
        rss, fds = 0.0, 0.0
        for each in family:
            try:
                rss += each.memory_info().rss
                fds += each.num_fds()
            except psutil.NoSuchProcess:  # a child that ended meanwhile
                continue
            except psutil.AccessDenied:
                return None, None, started
        return rss, fds, started


_PROCESS = ("process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds")
