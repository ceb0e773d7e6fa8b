"""From records to tables: which peer is best, ratios by round, shares of the limit, what failed."""

import pytest
from benchmarks.peers.engines import chart
from benchmarks.peers.engines.results import OtherSettingsError, Results, read
from benchmarks.peers.engines.roofline import Rates
from benchmarks.peers.engines.table import Spread, best_peer, by_round, latest, page, ratio, short
from benchmarks.peers.engines.workloads import FULL

OURS, PEERS = ["ours"], ["slow", "fast", "absent"]


def load(column, name, round_, value, memory=0):
    return {"kind": "load", "column": column, "load": name, "round": round_, "value": value, "memory_bytes": memory}


def online(column, rate, share):
    times = {"ttft_s": [0.2, float("inf")], "tpot_ms": [9.0, 21.0]}
    counts = {"num_requests": 300 if share > 0.5 else 70, "num_planned": 300}
    return (
        {"kind": "online", "column": column, "rate": rate, "share": share, "share_low": share - 0.03} | times | counts
    )


RECORDS = [
    load("ours", "W3", 0, 300.0, 900_000_000),
    load("ours", "W3", 1, 330.0, 800_000_000),
    load("slow", "W3", 0, 100.0, 400_000_000),
    load("slow", "W3", 1, 100.0),
    load("fast", "W3", 0, 150.0),
    load("fast", "W3", 1, 220.0),
    load("ours", "W4", 0, 10.0),
    load("slow", "W4", 0, 15.0),
    load("fast", "W4", 0, 40.0),
]


def cells(text, first):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_later_of_two_records_counts():
    found = latest([*RECORDS, load("ours", "W4", 0, 5.0), {"kind": "session"}])
    assert by_round(found, "W4")["ours"] == {0: 5.0}
    assert len(found) == len(RECORDS)


def test_the_best_peer_of_seconds_is_the_one_with_the_fewest():
    assert best_peer("W3", by_round(RECORDS, "W3"), PEERS) == "fast"
    assert best_peer("W4", by_round(RECORDS, "W4"), PEERS) == "slow"
    assert best_peer("W1", {}, PEERS) is None


def test_ratios_are_of_rounds_that_both_ran():
    found = by_round(RECORDS, "W3")
    assert ratio("W3", found["ours"], found["fast"]) == (Spread(1.75, 1.5, 2.0), 2)
    assert ratio("W4", {0: 10.0, 1: 1.0}, {0: 15.0, 2: 3.0}) == (Spread(1.5, 1.5, 1.5), 1)
    assert ratio("W4", {0: 10.0}, {1: 15.0}) is None


def test_page_by_hand():
    records = [*RECORDS, online("ours", 1.5, 0.95), online("ours", 2.0, 0.8), online("fast", 1.5, 0.4)]
    text = page(records, [FULL["W3"], FULL["W4"]], OURS, PEERS, {"W3": 600.0, "W4": 5.0}, ["slow"])
    assert cells(text, "W3 64 x 256 in, 128 out, tok/s") == [
        "315 [300-330]",
        "100 [100-100]",
        "185 [150-220]",
        "-",
        "600",
    ]
    assert cells(text, "W3") == ["fast", "1.5", "1.75 [1.5-2]", "52%", "31%"]
    assert cells(text, "W4") == ["slow", "1.5", "1.5", "50%", "33%"]
    assert cells(text, "W3 most memory, MB") == ["900", "400", "-", "-", ""]
    assert cells(text, "W3 memory, MB more than slow") == ["+500", "+0", "-", "-", ""]
    assert cells(text, "W5 at 1.5/s: good (at least), TTFT p95, TPOT p95")[0] == "95.0% (92.0%), none, 21 ms"
    assert cells(text, "W5 at 1.5/s: good (at least), TTFT p95, TPOT p95")[2].startswith(
        "40.0% of the first 70 (37.0%)"
    )
    assert cells(text, "W5 highest rate with 90% good") == ["1.5", "-", "none", "-", ""]


def test_a_failure_is_shown_until_it_was_made_up_for():
    failed = {"kind": "failed", "column": "fast", "part": "W1", "why": "out of luck"}
    assert "- fast, W1: out of luck" in page([failed], [FULL["W1"]], OURS, PEERS, {})
    assert "out of luck" not in page([failed, load("fast", "W1", 0, 9.0)], [FULL["W1"]], OURS, PEERS, {})


def test_three_digits():
    assert [short(v) for v in (1234.5, 12.345, 0.012345)] == ["1,234", "12.3", "0.0123"]


def test_results_go_on_and_refuse_other_settings(tmp_path):
    path = tmp_path / "run" / "full.jsonl"
    Results(path, {"threads": 2}).add(RECORDS[0])
    with path.open("a") as file:
        file.write('{"kind": "load", "cut')  # a crash while writing
    again = Results(path, {"threads": 2})
    assert again.records == [RECORDS[0]]
    assert again.has(kind="load", column="ours", round=0)
    assert not again.has(kind="load", column="ours", round=1)
    with pytest.raises(OtherSettingsError, match="threads"):
        Results(path, {"threads": 4})
    assert Results(path, {"threads": 4}, fresh=True).records == []
    assert [record["kind"] for record in read(path)] == ["settings"]


def test_a_point_on_the_roof_lies_on_its_line():
    rates = Rates(bytes_per_s=1e10, int8_ops=1e12, bf16_ops=5e11)
    points = [chart.Point("ours", "W1", 10.0, 1e11), chart.Point("peer <1>", "W2", 1e4, 1e12)]
    text = chart.svg(points, rates, ["ours", "peer <1>"], "a & b")
    assert text.count("<circle") == 4
    assert "peer &lt;1&gt;, W2" in text
    assert "a &amp; b" in text
    across, up = chart.Scale([1.0, 1e4], 0, 400), chart.Scale([1e9, 1e12], 300, 0)
    assert (across(1.0), across(1e2), across(1e4)) == (0, 200, 400)
    assert (up(1e9), up(1e12)) == (300, 0)
