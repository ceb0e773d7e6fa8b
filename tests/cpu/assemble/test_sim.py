"""What a simulated engine takes from files: weights as they would be held, prices as they were timed here."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from tests.fakes.model_folder import write_model

import paceline
from paceline import hub
from paceline.assemble import sim_engine
from paceline.assemble.sim import simulated_engine
from paceline.assemble.step_cost import calibration_path, kernels_in_use, kv_bytes_per_token, save_calibration
from paceline.config import load_config
from paceline.contracts.ports import StepShape
from paceline.contracts.specs import DeviceSpec
from paceline.cost import Calibration, CalibrationKey, StepCost, TimedCell, decode_shape
from paceline.errors import ConfigError
from paceline.text import load_tokenizer

HERE = DeviceSpec(kind="cpu", name="two cores", memory_bytes=1 << 32, num_cores=2, gflops=100.0, memory_gbps=10.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def test_floats_count_in_the_compute_type_and_not_as_stored(folder: Path) -> None:
    spec = hub.describe(hub.resolve(str(folder), folder))
    assert spec.weight_bytes == pytest.approx(4 * spec.num_parameters, rel=0.01)
    for dtype, size in (("auto", 2), ("float32", 4)):  # a card computes in 16 bits when nothing else is said
        engine = simulated_engine(load_config(None, {"model": str(folder), "dtype": dtype}), card="l4")
        assert engine.memory.ledger.weights.predicted_bytes == size * spec.num_parameters


class FlatPrior:
    def step_ms(self, shape: StepShape) -> float:
        return 10.0


def test_this_machines_own_times_are_found_and_those_of_another_model_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setattr(sim_engine, "find_device", lambda _: (HERE, "float32"))
    config = load_config(None, {"model": str(folder)})
    counted = simulated_engine(config)
    assert counted.cost_source.startswith("counts over")
    key = CalibrationKey(
        device="cpu two cores",
        num_cores=2,
        num_threads=2,
        model="tiny",
        revision=counted.spec.revision,
        dtype="float32",
        weights="1 bytes, auto",
        activations="float",
        kv_bytes_per_token=kv_bytes_per_token(counted.replica.layout.groups),
        numerics="fast",
        kernels=kernels_in_use(config, "cpu", "float32"),
        paceline=paceline.__version__,
        torch=version("torch"),
    )
    cell = TimedCell(cell="a row", shape=decode_shape(1, 64), ms=10.0, spread=0.0, tries=3)
    made = Calibration(
        key=key,
        prices=StepCost.from_prior(FlatPrior()).prices,
        cells=(cell,),
        probe_ms=(10.0, 10.0),
        load_gbps=1.0,
        gflops=1.0,
        memory_gbps=1.0,
    )
    path = calibration_path(tmp_path, key)
    save_calibration(path, made)
    timed = simulated_engine(config)
    assert timed.cost_source == "1 sizes of step timed for tiny on cpu two cores"
    assert timed.cost.step_ms(decode_shape(3, 100)) == pytest.approx(10.0)
    others = msgspec.structs.replace(made, key=msgspec.structs.replace(key, kernels="attention of another kind"))
    save_calibration(path, others)
    again = simulated_engine(config)
    assert again.cost_source == f"{counted.cost_source}; steps were timed here with other kernels"
    assert again.device == counted.device
    save_calibration(path, made)
    busy = msgspec.structs.replace(HERE, gflops=HERE.gflops / 8)  # probed in a bad moment
    monkeypatch.setattr(sim_engine, "find_device", lambda _: (busy, "float32"))
    assert simulated_engine(config).replica.settings == timed.replica.settings
    assert simulated_engine(config, calibration=path).device.gflops == made.gflops
    other = write_model(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="revision"):
        simulated_engine(load_config(None, {"model": str(other)}), calibration=path)


TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + TURNS


@pytest.mark.parametrize(
    ("template", "before", "between"), [(TURNS, "<system>", "</><user>"), (NO_SYSTEM, "<user>", ""), (None, "", "")]
)
def test_a_models_chat_template_is_counted_as_its_server_would(
    tmp_path: Path, template: str | None, before: str, between: str
) -> None:
    model = write_model(tmp_path / "chatty", chat_template=template)
    engine = simulated_engine(load_config(None, {"model": str(model)}), card="l4")
    encode = load_tokenizer(hub.resolve(str(model), tmp_path)).encode
    assert engine.template == (len(encode(before, add_special=False)), len(encode(between, add_special=False)))
    assert (engine.template.before > 0) == (template is not None)
