"""What is asked of a server, and when: a spec and a seed become a plan, which is a value.

    spec, parse, check   streams, classes and spans; TOML, unknown keys refused (unknown); targets (slo)
    arrivals, lengths    processes and distributions
    traces               published traces, replayed
    requests, plan       the requests of a run, in order; what a prefix cache can give back (reuse)
    content              their texts, of the asked number of tokens
    matrix               named workloads, scaled to the server under test

May import `contracts` and `errors`; no other part of the lab. Never opens a socket, never reads a clock: a plan and its
texts are functions of (spec, seed, salt).
"""

from paceline.lab.workload.content import Content, EstimateCounter, TokenCounter, WordCounter
from paceline.lab.workload.matrix import MATRIX, TargetSize, named
from paceline.lab.workload.parse import load_spec, spec_to_dict
from paceline.lab.workload.plan import Plan, make_plan, offered_rps, scale
from paceline.lab.workload.primers import PRIME_SLOTS, primers
from paceline.lab.workload.reuse import expected_hit, reusable_tokens
from paceline.lab.workload.slo import parse_slo, with_slo
from paceline.lab.workload.spec import Stream, WorkloadSpec

__all__ = [
    "MATRIX",
    "PRIME_SLOTS",
    "Content",
    "EstimateCounter",
    "Plan",
    "Stream",
    "TargetSize",
    "TokenCounter",
    "WordCounter",
    "WorkloadSpec",
    "expected_hit",
    "load_spec",
    "make_plan",
    "named",
    "offered_rps",
    "parse_slo",
    "primers",
    "reusable_tokens",
    "scale",
    "spec_to_dict",
    "with_slo",
]
