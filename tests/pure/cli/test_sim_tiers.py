"""`paceline sim --kv-tier`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.assemble.sim import SimulatedEngine, simulated_engine, tiering_of
from paceline.cli.main import app
from paceline.config import load_config
from paceline.cost.prior import Degrees
from paceline.cost.transfer import Link
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.artefact import read_run

CARD = ["sim", "--model", "llama-3.1-8b", "--device", "l4"]
CHATS = """
name = "chats"
num_requests = 30

[[stream]]
arrival = { kind = "constant", rate = 0.2 }
input = 6000
output = 20
turns = { mean = 2, max = 3, think_s = 30 }
"""
KEYS = {
    "name", "capacity_bytes", "gbps", "latency_us", "shared", "stored_blocks", "restored_blocks", "restored_requests",
    "restore_ms_p50", "restore_ms_p95", "recompute_ms_p50", "recompute_ms_p95", "link_busy_share", "refused_restores",
}  # fmt: skip


def sim(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*CARD, *options])
    return done.exit_code, " ".join(done.output.split())


def test_tiers_are_in_the_summary_and_in_the_artefact(tmp_path: Path) -> None:
    file, out = tmp_path / "chats.toml", tmp_path / "run"
    file.write_text(CHATS)
    code, text = sim(
        "--workload", str(file), "--slo", "ttft=5s", "--out", str(out),
        "--kv-tier", "dram=16,25,10", "--kv-tier", "store=100,0.001,shared",
    )  # fmt: skip
    assert code == 0, text
    assert "tier dram: " in text
    assert "tier store: " in text
    run = read_run(out)
    told = run.info.fingerprint["simulation"]
    assert told["tier_policy"] == "priced"
    dram, store = told["tiers"]
    assert set(dram) == set(store) == KEYS
    assert (dram["name"], dram["capacity_bytes"], dram["gbps"], dram["latency_us"]) == ("dram", 16 << 30, 25.0, 10.0)
    assert (store["shared"], store["latency_us"]) == (True, 0.0)
    assert dram["restored_requests"] > 0
    assert 0 < dram["restore_ms_p50"] <= dram["restore_ms_p95"] < dram["recompute_ms_p95"]
    assert 0 < dram["link_busy_share"] < 1
    assert store["restored_requests"] == 0
    assert store["restore_ms_p95"] is None
    restored = [record.server.get("restored_tokens", 0.0) for record in run.records]
    assert 0 < sum(restored) <= 16 * dram["restored_blocks"]  # some had to make room again before they were used
    for record, tokens in zip(run.records, restored, strict=True):
        assert record.cached_tokens >= tokens
    alone = tmp_path / "alone"
    assert sim("--workload", str(file), "--slo", "ttft=5s", "--out", str(alone))[0] == 0
    before = read_run(alone)
    assert "tiers" not in before.info.fingerprint["simulation"]
    assert run.metrics.whole.cached_tokens > before.metrics.whole.cached_tokens
    assert run.metrics.whole.latency["ttft"].p50.value < before.metrics.whole.latency["ttft"].p50.value


@pytest.fixture(scope="module")
def engine() -> SimulatedEngine:
    return simulated_engine(load_config(None, {"model": "llama-3.1-8b"}), card="l4")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["dram"], "--kv-tier was not understood"),
        (["dram=64"], r"expected: NAME=GIB,GBPS\[,US\]\[,shared\], such as dram=64,25,10"),
        (["dram=64,fast"], "--kv-tier was not understood"),
        (["dram=64,25,10,5"], "--kv-tier was not understood"),
        (["dram=64,25,10,alone"], "--kv-tier was not understood"),
        (["dram=inf,25"], "--kv-tier was not understood"),
        (["dram=64,0"], "a link has a rate or a latency that cannot be"),
        (["=64,25"], "a tier has no name or no room"),
        (["dram=0,25"], "a tier has no name or no room"),
        (["dram=1e-10,25"], "a tier has no name or no room"),
        (["a=1,25", "a=2,5"], "two tiers have the same name"),
        (["s=1,2,shared", "d=1,2"], "behind a shared one"),
    ],
)
def test_tiers_that_cannot_be_are_named(texts: list[str], words: str, engine: SimulatedEngine) -> None:
    with pytest.raises(ConfigError, match=words):
        tiering_of(texts, "priced", engine)


def test_what_is_asked_for_is_what_is_made(engine: SimulatedEngine) -> None:
    tiering = tiering_of(["dram=64,25,10", "store = 2000, 3, shared"], "always", engine)
    assert tiering is not None
    dram, store = tiering.tiers
    assert (dram.name, dram.capacity_bytes, dram.link, dram.shared) == (
        "dram",
        64 << 30,
        Link(gbps=25, latency_us=10),
        False,
    )
    assert (store.name, store.capacity_bytes, store.link, store.shared) == ("store", 2000 << 30, Link(gbps=3), True)
    assert tiering.policy == "always"
    assert tiering_of([], "priced", engine) is None
    with pytest.raises(ConfigError, match="no policy of tiers has this name"):
        tiering_of([], "maybe", engine)
    with pytest.raises(UnsupportedError, match="not simulated with expert groups"):
        tiering_of(["dram=64,25"], "priced", replace(engine, degrees=Degrees(ep=2)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-tier", "dram=1e-6,25"], "the tier dram holds no block"),
        (["--kv-tier", "dram=64,25", "--set", "enable_prefix_caching=false"], "simulated for plain KV caches"),
        (["--kv-tier", "dram=64,25", "--replicas", "2", "--prefill-replicas", "1"], "have no lower tiers"),
    ],
)
def test_engines_that_cannot_have_them_are_bad_input(options: list[str], words: str) -> None:
    code, text = sim("--num-requests", "2", *options)
    assert code == 2, text
    assert words in text
