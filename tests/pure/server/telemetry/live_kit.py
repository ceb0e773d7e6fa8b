"""Looks at an engine and records of requests, by hand."""

import math

from paceline.contracts.kv import KVStats
from paceline.contracts.ports import EngineStats


def stats(time=0.0, *, step=0, computed=0, output=0, hits=0, asked=0, recent=(), stalled=False, trouble=""):
    kv = KVStats(
        total=100,
        free=60,
        cached=25,
        held=12,
        limbo=3,
        reserved=0,
        hit_tokens=hits,
        query_tokens=asked,
        evictions=0,
        miss_reasons={},
    )
    return EngineStats(
        time=time,
        step=step,
        num_running=2,
        num_waiting=1,
        waiting_tokens=40,
        kv=kv,
        computed_tokens=computed,
        output_tokens=output,
        recent=list(recent),
        stalled=stalled,
        trouble=trouble,
        last_step={"device_ms": 12.5, "host_us": 800.0},
    )


class Record:
    def __init__(self, ttft_s, tpot_s=math.nan):
        self.ttft_s, self.tpot_s = ttft_s, tpot_s
