"""A server's size from a few requests: what the script says, up to what a busy machine adds."""

from __future__ import annotations

import asyncio

import pytest

from paceline.errors import LabError
from paceline.lab.experiment.sizing import ALONE, AT_ONCE, measure_size
from paceline.lab.load import probe
from paceline.lab.mock import Flavour, MockServer, Script, Service


def test_unloaded_times_and_what_runs_at_once():
    with MockServer(Script(flavour=Flavour.PACELINE, service=Service(ttft_ms=60, tpot_ms=8))) as mock:
        target = asyncio.run(probe(mock.url))
        before = len(mock.log())
        size = measure_size(target)
        asked = [entry for entry in mock.log()[before:] if entry.path.startswith("/v1/chat")]
    assert size.ttft_s >= 0.06
    assert size.tpot_s >= 0.004  # a client that sees the first token late takes it off the rest
    assert 1.0 <= size.parallel <= AT_ONCE
    assert size.max_model_len == target.info.max_model_len
    assert len(asked) == ALONE + 2 * AT_ONCE


def test_a_server_that_gives_no_answer_cannot_be_sized():
    with MockServer(Script(flavour=Flavour.OPENAI)) as mock:
        target = asyncio.run(probe(mock.url))
    with pytest.raises(LabError):
        measure_size(target, timeout_s=5)
