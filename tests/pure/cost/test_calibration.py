from __future__ import annotations

import msgspec
import pytest
from tests.pure.cost.steps import cpu_prior, true_ms

from paceline.assemble.step_cost import (
    calibration_path,
    find_calibration,
    load_calibration,
    save_calibration,
    start_cost,
)
from paceline.cost import (
    Calibration,
    CalibrationKey,
    StepCost,
    TimedCell,
    decode_calibration,
    decode_shape,
    encode_calibration,
)
from paceline.cost.batch import fit_steps
from paceline.cost.cells import Limits, grid, held_out
from paceline.errors import ConfigError

LIMITS = Limits(max_rows=8, max_tokens=256, max_model_len=1024, num_blocks=1024, block_size=16)
KEY = CalibrationKey(
    device="cpu two cores",
    num_cores=2,
    num_threads=2,
    model="small",
    revision="abc",
    dtype="float32",
    weights="90000000 bytes, auto",
    activations="float",
    kv_bytes_per_token=46080.0,
    numerics="fast",
    kernels="linear native",
    paceline="0.1.0",
    torch="2.13.0",
)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    cost = fit_steps(cpu_prior(), [(c.shape, true_ms(c.shape)) for c in grid(LIMITS)], step_spread=0.02)
    cells = [
        TimedCell(
            cell=str(cell),
            shape=cell.shape,
            ms=true_ms(cell.shape),
            spread=0.02,
            tries=5,
            held_out=held,
            predicted_ms=cost.step_ms(cell.shape),
        )
        for held, part in ((False, grid(LIMITS)), (True, held_out(LIMITS)))
        for cell in part
    ]
    return Calibration(
        key=KEY,
        prices=cost.prices,
        cells=tuple(cells),
        probe_ms=(10.0, 10.4),
        load_gbps=1.5,
        gflops=200.0,
        memory_gbps=20.0,
    )


def test_a_file_gives_back_the_same_model(calibration: Calibration) -> None:
    again = decode_calibration(encode_calibration(calibration))
    assert again == calibration
    assert again.cost().prices == calibration.cost().prices
    assert again.drift == pytest.approx(0.04)
    assert again.errors(held_out=True) == sorted(c.error for c in calibration.cells if c.held_out)
    assert again.errors(held_out=True)[-1] < 0.1


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 1}', b"[1]", b"\xff\x00"])
def test_what_is_no_calibration_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="no calibration"):
        decode_calibration(data)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("covariance", (1.0, 2.0)),
        ("weights", (1.0, 1.0)),
        ("weights", (-1.0, *[1.0] * 9)),
        ("scale", (1e999, *[1.0] * 9)),
        ("scale", 1.0),
        ("noise", 1e999),
        ("noise", 0.0),
        ("run", 1e999),
        ("low", ()),
        ("high", (1.0,)),
        ("timed", (1.0, 2.0)),
    ],
)
def test_prices_that_no_model_has_are_refused(calibration: Calibration, name: str, value: object) -> None:
    prices = {**calibration.prices, name: value}
    with pytest.raises((ValueError, TypeError)):
        StepCost(**prices)
    broken = msgspec.structs.replace(calibration, prices=prices)
    with pytest.raises(ConfigError, match="no calibration"):
        decode_calibration(encode_calibration(broken))


def test_another_version_of_the_file_is_refused(calibration: Calibration) -> None:
    with pytest.raises(ConfigError, match="another version"):
        decode_calibration(encode_calibration(msgspec.structs.replace(calibration, format=2)))


def test_times_of_another_key_are_refused_with_what_differs(calibration: Calibration) -> None:
    calibration.check(msgspec.structs.replace(KEY, model="the same by another name"))
    with pytest.raises(ConfigError, match=r"dtype float32.*dtype bfloat16"):
        calibration.check(msgspec.structs.replace(KEY, dtype="bfloat16"))


@pytest.mark.parametrize("name", [n for n in CalibrationKey.__struct_fields__ if n != "model"])
def test_every_part_of_the_key_but_the_name_counts(name: str) -> None:
    value = getattr(KEY, name)
    other = msgspec.structs.replace(KEY, **{name: value + "x" if isinstance(value, str) else value + 1})
    assert other.digest != KEY.digest
    assert msgspec.structs.replace(KEY, model="other").digest == KEY.digest


def test_an_engine_starts_with_the_file_of_its_key_and_else_with_the_prior(tmp_path, calibration: Calibration) -> None:
    prior = cpu_prior()
    fresh, source = start_cost(tmp_path, KEY, prior)
    assert "paceline calibrate" in source
    assert fresh.estimate(decode_shape(2, 64)).tier == "first principles"
    save_calibration(calibration_path(tmp_path, KEY), calibration)
    found, source = start_cost(tmp_path, msgspec.structs.replace(KEY, model="/some/where/small.gguf"), prior)
    assert found.prices == calibration.cost().prices
    assert "timed on this machine" in source
    assert find_calibration(tmp_path, msgspec.structs.replace(KEY, num_threads=1)) is None


def test_a_file_under_a_name_that_is_not_its_own_is_refused(tmp_path, calibration: Calibration) -> None:
    other = msgspec.structs.replace(KEY, num_threads=1)
    save_calibration(calibration_path(tmp_path, other), calibration)
    with pytest.raises(ConfigError, match=r"num_threads 2.*num_threads 1"):
        find_calibration(tmp_path, other)


def test_a_file_that_cannot_be_read_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json"):
        load_calibration(tmp_path / "nothing.json")
    path = tmp_path / "text.json"
    path.write_text("hello")
    with pytest.raises(ConfigError, match=r"text\.json"):
        load_calibration(path)


def test_a_model_may_be_called_anything(tmp_path) -> None:
    path = calibration_path(tmp_path, msgspec.structs.replace(KEY, model="../..//a b/ü:c"))
    assert path.parent == tmp_path / "calibrations"
    assert path.name.endswith(f"-{KEY.digest}.json")
