"""What was timed on this machine is found again, by all that is known before weights are loaded."""

from importlib.metadata import version

import msgspec
import pytest
from tests.pure.cost.steps import cpu_prior

import paceline
from paceline.assemble.step_cost import (
    calibration_path,
    kv_bytes_per_token,
    load_calibration,
    save_calibration,
    start_cost,
    timed_here,
)
from paceline.config import load_config
from paceline.contracts.kv import kv_format, plan_kv_groups
from paceline.contracts.specs import DeviceSpec
from paceline.cost import Calibration, CalibrationKey, StepCost
from paceline.planner import CARDS

SPEC = CARDS["gemma-3-27b"].spec  # 52 sliding layers and 10 full ones: the last group of the sliding ones is padded
CPU = DeviceSpec(
    kind="cpu", name="two cores", memory_bytes=1 << 34, num_cores=2, gflops=50.0, memory_gbps=10.0, source="measured"
)
CONFIG = load_config(flags={"model": "any"})
KEY = CalibrationKey(
    device="cpu two cores",
    num_cores=2,
    num_threads=2,
    model="any",
    revision=SPEC.revision,
    dtype="float32",
    weights="90000000 bytes, auto",
    activations="float",
    kv_bytes_per_token=kv_bytes_per_token(plan_kv_groups(SPEC, 16, 4)),
    numerics="fast",
    kernels="linear native",
    paceline=paceline.__version__,
    torch=version("torch"),
)


def keep(home, key=KEY):
    found = Calibration(
        key=key, prices=StepCost.from_prior(cpu_prior()).prices, cells=(), probe_ms=(10.0, 10.0), load_gbps=1.5,
        gflops=50.0, memory_gbps=10.0,
    )  # fmt: skip
    save_calibration(calibration_path(home, key), found)
    return found


def test_padded_groups_count_and_unreadable_files_are_passed_over(tmp_path):
    assert KEY.kv_bytes_per_token > kv_format("float32", SPEC).sequence_bytes(SPEC, 1)
    assert timed_here(tmp_path, CONFIG, SPEC, CPU, "float32") is None
    found = keep(tmp_path)
    (tmp_path / "calibrations" / "a-broken.json").write_text("{")
    assert timed_here(tmp_path, CONFIG, SPEC, CPU, "float32") == found


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("device", "cpu another"), ("num_cores", 3), ("num_threads", 1), ("revision", "x"), ("dtype", "bfloat16"),
        ("weights", "9 bytes, none"), ("activations", "int8"), ("kv_bytes_per_token", 1.0), ("numerics", "reference"),
        ("paceline", "0"), ("torch", "0"),
    ],
)  # fmt: skip
def test_times_of_something_else_are_not_taken(tmp_path, name, other):
    keep(tmp_path, msgspec.structs.replace(KEY, **{name: other}))
    assert timed_here(tmp_path, CONFIG, SPEC, CPU, "float32") is None


def test_times_of_other_kernels_are_not_taken_where_kernels_are_known(tmp_path):
    found = keep(tmp_path)
    assert timed_here(tmp_path, CONFIG, SPEC, CPU, "float32", kernels=KEY.kernels) == found
    assert timed_here(tmp_path, CONFIG, SPEC, CPU, "float32", kernels="attention of another kind") is None


def test_options_that_change_steps_are_looked_for(tmp_path):
    found = keep(tmp_path, msgspec.structs.replace(KEY, num_threads=1))
    one = load_config(flags={"model": "any", "num_threads": 1})
    assert timed_here(tmp_path, one, SPEC, CPU, "float32") == found
    assert (
        timed_here(tmp_path, load_config(flags={"num_threads": 1, "kv_cache_dtype": "int8"}), SPEC, CPU, "float32")
        is None
    )


def test_a_gpu_is_found_whatever_the_hosts_cores(tmp_path):
    found = keep(tmp_path, msgspec.structs.replace(KEY, device="cuda x", num_cores=132, num_threads=16))
    gpu = msgspec.structs.replace(CPU, kind="cuda", name="x", num_cores=132)
    assert timed_here(tmp_path, CONFIG, SPEC, gpu, "float32") == found


@pytest.mark.parametrize("text", ["{", None])
def test_an_engine_starts_without_a_file_that_cannot_be_used_and_says_so(tmp_path, text):
    """Broken, or of another key: a new calibration must be able to replace it."""
    keep(tmp_path)
    path = calibration_path(tmp_path, KEY)
    key = KEY if text else msgspec.structs.replace(KEY, num_threads=7)
    path.write_text(text) if text else path.rename(calibration_path(tmp_path, key))
    cost, source = start_cost(tmp_path, key, cpu_prior())
    assert cost.prices == StepCost.from_prior(cpu_prior()).prices
    assert ("no calibration" if text else "of something else") in source
    assert "paceline calibrate" in source
    again = keep(tmp_path, key)
    assert load_calibration(calibration_path(tmp_path, key)) == again
