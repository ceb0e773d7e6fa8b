"""The usage file outlives a kill -9 in the middle of writing: a real process, killed while it writes."""

import json
import signal
import subprocess
import sys

from paceline.server.tenancy.usage import UsageLedger, UsageRecord, read_usage

WRITER = """
import sys
from paceline.contracts.slo import Outcome
from paceline.server.tenancy.usage import UsageLedger, UsageRecord

ledger = UsageLedger(sys.argv[1])
for number in range(int(sys.argv[2]), 10**9):
    record = UsageRecord(time=0.0, request_id=str(number), tenant="t" * 50, service_class="default", model="m",
                         outcome=Outcome.OK)
    if ledger.record(record):
        print(number, flush=True)  # acknowledged
"""


def test_every_acknowledged_record_is_there_after_kill_9(tmp_path):
    path = tmp_path / "usage.jsonl"
    first = 0
    for acknowledged in (1, 137, 1001):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        try:
            for _ in range(acknowledged):
                last = int(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGKILL)
            rest, _ = child.communicate(timeout=30)
        last = max([last, *(int(word) for word in rest.split("\n")[:-1] if word)])
        assert child.returncode == -signal.SIGKILL
        UsageLedger(path).close()  # as the next server does
        lines = path.read_bytes().split(b"\n")
        assert lines.pop() == b""
        numbers = [int(json.loads(line)["request_id"]) for line in lines]  # every line is whole
        assert numbers == list(range(numbers[-1] + 1))  # none twice, none missing, over all lives
        assert numbers[-1] >= last
        first = numbers[-1] + 1
    assert all(isinstance(r, UsageRecord) for r in read_usage(path))
