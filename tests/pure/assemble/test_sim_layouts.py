"""Engines divided over several devices, simulated: what must grow or shrink with each degree."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.assemble.sim import Simulated, is_met, load_workload, scale_up_budget, simulate, simulated_engine
from paceline.assemble.sim_engine import SimulatedEngine
from paceline.config import load_config
from paceline.contracts.ports import StepShape
from paceline.cost import decode_shape, joined, prefill_shape
from paceline.cost.prior import Degrees
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.metrics import compute
from paceline.lab.workload import load_spec, parse_slo, with_slo
from paceline.planner.cards import CARDS
from paceline.planner.devices import DEVICES
from paceline.planner.layout import Layout
from paceline.planner.step import LayoutSteps, layout_prior
from paceline.router.scaling import ScalingPolicy


def engine(model: str, card: str = "h100-sxm", imbalance: float = 1.2, **degrees: int) -> SimulatedEngine:
    return simulated_engine(
        load_config(None, {"model": model}), card=card, degrees=Degrees(**degrees), expert_imbalance=imbalance
    )


def steps(model: str, **degrees: int) -> LayoutSteps:
    spec = CARDS[model].spec
    return layout_prior(
        spec, DEVICES["h100-sxm"], Layout(degrees=Degrees(**degrees)), per_node=8, weights="bf16",
        weight_bytes=2 * spec.num_parameters, dtype_bytes=2, kv_dtype_bytes=2,
    )  # fmt: skip


def decode(rows: int, context: int = 1000) -> StepShape:
    return decode_shape(rows, context)


def test_tensor_parallel_steps_are_shorter_but_not_in_proportion() -> None:
    engines = [engine("llama-3.1-70b", tp=tp) for tp in (4, 8)]
    for shape in (decode(1), decode(32), prefill_shape(2048)):
        four, eight = (each.cost.step_ms(shape) for each in engines)
        assert eight < four < 2 * eight  # messages, and parts that are not divided
    assert engines[0].memory.num_blocks < engines[1].memory.num_blocks


def test_a_pipeline_with_fewer_rows_than_stages_stands_partly_idle() -> None:
    one, four = steps("llama-3.1-70b"), steps("llama-3.1-70b", pp=4)
    for rows in (1, 4):  # a token takes as long as on one device, whatever the number of stages
        assert four.round_ms(decode(rows)) == pytest.approx(one.round_ms(decode(rows)), rel=0.06)
    shares = [four.round_ms(decode(rows)) / rows for rows in (1, 2, 4)]
    assert shares[0] == pytest.approx(2 * shares[1], rel=0.02)  # the second row is in a stage that was idle
    assert shares[1] == pytest.approx(2 * shares[2], rel=0.1)


def test_the_slowest_stage_sets_the_pace_of_a_full_pipeline() -> None:
    """Gemma's head is large and lies on the last stage alone."""
    full = steps("gemma-3-27b", pp=2)
    shape = decode(64)
    micro = decode(32)
    parts = full.times
    assert full.round_ms(shape) == pytest.approx(2 * parts.interval_ms(micro), rel=1e-6)  # type: ignore[attr-defined]
    assert full.round_ms(shape) > parts.step_ms(micro)


def test_expert_parallel_pays_for_its_busiest_group_and_holds_more() -> None:
    even, skewed = (engine("mixtral-8x7b", imbalance=factor, ep=4) for factor in (1.0, 2.0))
    shape = prefill_shape(2048)
    assert even.cost.step_ms(shape) < skewed.cost.step_ms(shape)
    two = engine("mixtral-8x7b", tp=2)
    assert even.replica.layout.num_blocks > two.replica.layout.num_blocks
    assert even.replica.settings.max_num_seqs % 4 == 0


def test_prices_are_those_of_the_rounds() -> None:
    """Of a round with decodes and a chunk too, whose micro-batches share the chunk."""
    simulated = engine("llama-3.1-70b", tp=2, pp=4)
    exact = steps("llama-3.1-70b", tp=2, pp=4)
    both = joined(decode(64), prefill_shape(1024, 500))
    for shape in (decode(1), decode(32), decode(128), prefill_shape(512), prefill_shape(2048, 4096), both):
        assert simulated.cost.step_ms(shape) == pytest.approx(exact.round_ms(shape), rel=2e-3)


def run(each: SimulatedEngine, **options: Any) -> Simulated:
    spec = with_slo(load_workload("steady", each, rate=2.0, duration_s=12.0), parse_slo("ttft=5s,tpot=200ms"))
    return simulate(each, spec, **options)


def p50(simulated: Simulated, name: str) -> float:
    value = compute(simulated.info, simulated.records).whole.latency[name].p50.value
    assert value is not None
    return value


def test_a_fleet_of_divided_engines_is_faster_by_the_device() -> None:
    slow, fast = (run(engine("llama-3.1-70b", tp=tp)) for tp in (4, 8))
    for name in ("ttft", "tpot"):
        assert p50(fast, name) < p50(slow, name)
    assert fast.info.fingerprint["simulation"]["devices_per_replica"] == str(Degrees(tp=8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"card": None, "degrees": Degrees(tp=2)}, "for a card of the table"),
        ({"card": "h100-sxm", "degrees": Degrees(tp=3)}, "cannot be divided"),
        ({"card": "h100-sxm", "degrees": Degrees(ep=2)}, "no experts to divide"),
    ],
)
def test_what_cannot_be_divided_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        simulated_engine(load_config(None, {"model": "llama-3.1-8b"}), **options)


def test_the_scale_up_budget_lies_between_what_is_met_and_what_is_not() -> None:
    each = engine("llama-3.1-8b", card="l4")
    burst = {"kind": "steps", "rates": [0.5, 0.5, 20.0, 0.5, 0.5, 0.5]}
    spec = load_spec(
        {
            "duration_s": 30.0, "drain_s": 600.0, "slo": {"default": {"ttft_ms": 4000.0, "share": 0.9}},
            "stream": [{"arrival": burst, "input": 400, "output": 60}],
        }
    )  # fmt: skip
    scaling = ScalingPolicy(max_replicas=8, target_open=6.0, period_s=1.0)
    seen: dict[float, bool] = {}

    def at(cold_start_s: float) -> Simulated:
        done = simulate(each, spec, router="least-loaded", cold_start_s=cold_start_s, scaling=scaling)
        seen[cold_start_s] = is_met(done)
        return done

    longest, failed = scale_up_budget(at, 60.0, tries=3)
    assert failed is not None
    assert 0.0 <= longest < failed < 60.0
    assert seen[failed] is False
    assert seen[longest] is True
    with pytest.raises(ConfigError, match="whatever the cold start"):
        scale_up_budget(lambda s: simulate(each, spec, cold_start_s=s), 60.0)


def test_a_long_prompt_is_divided_over_context_parallel_devices() -> None:
    """TTFT of one long prompt falls, nearly by the number of devices, and the cache holds all that is useful."""
    long = {
        "model": "llama-3.1-8b", "prefill_chunk_tokens": 65_536, "max_num_batched_tokens": 65_600,
        "scheduling_mode": "fixed",  # steps as long as they come
    }  # fmt: skip
    one, four = (simulated_engine(load_config(None, long), card="h100-sxm", degrees=Degrees(cp=cp)) for cp in (1, 4))
    assert "KV holds" in one.memory.notes[0]  # and more would be of use
    assert 2.5 * one.memory.num_blocks < four.memory.num_blocks
    assert not four.memory.notes
    assert four.kv_bytes_per_token == pytest.approx(one.kv_bytes_per_token / 4)
    prompt = load_spec(
        {
            "duration_s": 60.0, "max_model_len": 131_072,
            "stream": [{"arrival": {"kind": "closed", "slots": 1, "requests": 6}, "input": 60_000, "output": 8}],
        }
    )  # fmt: skip
    alone, divided = (p50(simulate(each, prompt), "ttft") for each in (one, four))
    assert alone / 4 < divided < alone / 2.5
    assert four.cost_source.endswith("CP4")


@pytest.mark.parametrize(("steps", "first"), [(["salt", "flush"], 0), (["salt", "flush", "prime"], 256)])
def test_a_cache_that_the_lab_fills_beforehand_is_full_here_too(steps: list[str], first: int) -> None:
    prefix = {"groups": 1, "tokens": 256}
    asked = {"arrival": {"kind": "poisson", "rate": 2.0}, "input": 16, "output": 4, "prefix": prefix}
    found = simulate(
        engine("llama-3.1-8b"), load_spec({"num_requests": 10, "cache": {"protocol": steps}, "stream": [asked]})
    )
    assert [record.cached_tokens for record in found.records] == [first, *[256] * 9]
