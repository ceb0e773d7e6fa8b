from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lab.report.toml import toml_of

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_SCALAR = st.one_of(_TEXT, st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False))
_TABLE = st.dictionaries(_TEXT, st.one_of(_SCALAR, st.lists(_SCALAR, max_size=3)), max_size=4)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(_TEXT, st.one_of(_SCALAR, _TABLE, st.lists(_TABLE, min_size=1, max_size=3)), max_size=5))
def test_what_is_written_reads_back(values: dict[str, Any]):
    assert tomllib.loads(toml_of(values)) == values


def test_a_workload_looks_as_a_person_would_write_it():
    spec = {
        "name": "chat",
        "note": None,
        "slo": {"chat": {"ttft_s": 0.4}},
        "stream": [{"name": "a", "arrival": {"rate": 8.0}}],
    }
    assert toml_of(spec) == (
        'name = "chat"\n\n[slo]\nchat = { ttft_s = 0.4 }\n\n[[stream]]\nname = "a"\narrival = { rate = 8.0 }\n'
    )
