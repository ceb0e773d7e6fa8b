"""Small specs for the tests of this folder."""

from __future__ import annotations

from typing import Any

from paceline.lab.workload import WorkloadSpec, load_spec


def spec_of(*streams: dict[str, Any], **fields: Any) -> WorkloadSpec:
    """A checked spec; a stream without lengths gets 64 in and 16 out, one without arrival Poisson at 5 a second."""
    usual = {"arrival": {"kind": "poisson", "rate": 5.0}, "input": 64, "output": 16}
    return load_spec({"duration_s": 30, "stream": [{**usual, **s} for s in streams or ({},)], **fields})
