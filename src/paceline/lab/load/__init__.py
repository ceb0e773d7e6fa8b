"""The load generator: carries out a plan on time against any OpenAI-compatible server, and records what came back.

    target = await probe("http://127.0.0.1:8000")
    result = run_load(target, plan, content)

It decides nothing about what is asked (a plan says that) and computes no metric (records hold raw times). Open loop by
absolute schedule, one record per attempt, no hidden retries. It imports `contracts`, `errors` and `lab.workload`; never
the mock, which it starts as a program to calibrate itself, and never anything that could make a time depend on more
than the network and the server.
"""

from paceline.lab.load.calibrate import Calibration, calibrate_client
from paceline.lab.load.options import LoadOptions
from paceline.lab.load.probe import probe
from paceline.lab.load.progress import Progress
from paceline.lab.load.result import LoadResult
from paceline.lab.load.run import run_load
from paceline.lab.load.seams import Validate
from paceline.lab.load.target import Target, parse_url
from paceline.lab.load.token_counter import HttpTokenCounter

__all__ = [
    "Calibration",
    "HttpTokenCounter",
    "LoadOptions",
    "LoadResult",
    "Progress",
    "Target",
    "Validate",
    "calibrate_client",
    "parse_url",
    "probe",
    "run_load",
]
