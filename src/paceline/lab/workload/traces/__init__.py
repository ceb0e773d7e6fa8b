"""Recorded loads: readers for published traces, and their replay as an arrival process.

    tables     Azure 2023 and 2024, BurstGPT (CSV)
    blocks     Mooncake, Qwen-Bailian (JSON lines with block ids)
    servegen   ServeGen clients (rates and histograms; requests are drawn)
    reading    which reader a file needs
    replay     a trace as an arrival: faster or slower, order and burst shape kept

A trace holds times and lengths, never texts. May import the workload's draws and arrivals; never other lab parts.
"""

from paceline.lab.workload.traces.reading import FORMATS, open_trace
from paceline.lab.workload.traces.rows import TraceRows, TraceSource

__all__ = ["FORMATS", "TraceRows", "TraceSource", "open_trace"]
