"""Scoring while a load runs: the load is there from the first item to the last, and is told."""

import asyncio
import time

import pytest

from paceline.errors import LabError
from paceline.lab.load import probe
from paceline.lab.mock import MockServer, load_script
from paceline.lab.quality.under_load import load_beside
from paceline.lab.workload import load_spec

SPEC = {
    "name": "beside",
    "num_requests": 6,
    "stream": [
        {
            "arrival": {"kind": "closed", "slots": 2},
            "input": {"kind": "fixed", "tokens": 24},
            "output": {"kind": "fixed", "tokens": 4},
        }
    ],
}


def test_the_load_goes_on_until_the_block_ends():
    with MockServer(load_script({"service": {"ttft_ms": 5, "tpot_ms": 2}})) as server:
        target = asyncio.run(probe(server.url))
        with load_beside(target, load_spec(SPEC)) as beside:
            while beside.num_sent < 13:  # the plan of six begins again, twice
                assert beside.error is None
                time.sleep(0.02)
        assert beside.num_ok > 0
        assert "a load ran beside" in beside.sentence
        assert beside.stop.is_set()


def test_a_load_that_cannot_be_sent_is_an_error():
    with MockServer() as server:
        target = asyncio.run(probe(server.url))
    with pytest.raises(LabError, match="load beside"), load_beside(target, load_spec(SPEC)):
        pass
