"""The file of a plan loads as a configuration, or is refused with the reason."""

import msgspec
import pytest
from tests.pure.planner.kit import question, short

from paceline.config import load_config, load_server_config
from paceline.contracts.kv import KVFormat
from paceline.contracts.slo import parse_targets
from paceline.contracts.workload import SloClass
from paceline.errors import UnsupportedError
from paceline.planner import Kept, config_text, make_plan, why_not_served
from paceline.planner.plan import rows_to_run
from paceline.planner.verify import Load, Simulated


def test_what_is_written_is_what_was_planned(tmp_path):
    plan = make_plan(question(devices=8, traffic=short()))
    text = config_text(plan.question, plan.chosen, plan.memory.config)
    path = tmp_path / "serve.toml"
    path.write_text(text)
    assert load_config(path) == plan.memory.config
    assert plan.memory.config.model.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert plan.memory.config.scheduling.max_num_seqs == rows_to_run(plan.chosen)
    assert "start one engine on each of 8 devices" in text
    assert parse_targets(load_server_config(path).slo) == plan.question.slo.slo
    assert "scheduling_mode" not in text  # nothing was simulated


@pytest.mark.parametrize("mode", ["fixed", "auto"])
def test_the_file_has_the_scheduling_mode_that_was_simulated(tmp_path, mode):
    plan = make_plan(question(traffic=short()))
    load = Load(
        rate_rps=1.0, expected=plan.chosen.operating, attainment=1.0, ttft_p95_s=0.1, tpot_s=0.01, num_preemptions=0,
        num_requests=10, mode=mode,
    )  # fmt: skip
    chosen = msgspec.structs.replace(plan.chosen, simulated=Simulated(loads=(load,), share=0.95, seed=0))
    path = tmp_path / "serve.toml"
    path.write_text(config_text(plan.question, chosen, plan.memory.config))
    assert load_config(path).scheduling.scheduling_mode == mode


def test_a_name_with_quotes_stays_a_name(tmp_path):
    plan = make_plan(question(serve_name='a "b" \\ c'))
    path = tmp_path / "serve.toml"
    path.write_text(config_text(plan.question, plan.chosen, plan.memory.config))
    assert load_config(path).model.model == 'a "b" \\ c'


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (question("llama-3.1-70b", devices=8, slo=SloClass(tpot_s=0.1), traffic=short()), "needs several"),
        (question("mixtral-8x7b", device="b200", slo=SloClass(tpot_s=0.1)), "family mixtral"),
        (question(kept=Kept(weights="fp8")), "fp8 are not read"),
        (
            question(kept=Kept(kv_cache_dtype="float16"), traffic=short()),
            "computes in bfloat16 keeps no KV cache in float16",
        ),
        (question(kept=Kept(kv_cache_dtype="int8", kv=KVFormat(1, 4)), traffic=short()), "int8 KV cache on CUDA"),
    ],
)
def test_what_this_version_cannot_serve_has_no_file(ask, words):
    plan = make_plan(ask)
    assert words in why_not_served(ask, plan.chosen)
    with pytest.raises(UnsupportedError, match="no file for this plan"):
        config_text(ask, plan.chosen, plan.memory.config)


def test_a_cache_in_the_compute_type_has_one():
    plan = make_plan(question(kept=Kept(kv_cache_dtype="bfloat16"), traffic=short()))
    assert why_not_served(plan.question, plan.chosen) == ""


def test_what_does_not_fit_has_none_either():
    plan = make_plan(question("llama-3.1-70b"))
    assert plan.chosen is None
    assert "does not fit" in why_not_served(plan.question, msgspec.structs.replace(plan.search.candidates[0]))
