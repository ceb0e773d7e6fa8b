"""A question about this machine: what an engine would refuse is refused, a broken calibration is none."""

import pytest
from tests.fakes.model_folder import write_model

from paceline.assemble.plan import Asked, read_question
from paceline.config import Environment
from paceline.errors import UnsupportedError


def test_a_plan_for_this_machine_takes_and_refuses_what_an_engine_does(tmp_path):
    folder, home = write_model(tmp_path / "tiny"), tmp_path / "home"
    (home / "calibrations").mkdir(parents=True)
    (home / "calibrations" / "tiny-0123.json").write_text("{")
    asked = Asked(model=str(folder), input="20", output="8")
    question = read_question(asked, Environment(home=home))
    assert question.times is None
    assert question.kept.dtype in ("float32", "bfloat16")
    other = Asked(
        model=str(folder), input="20", output="8", kv_cache_dtype="float16"
    )  # no CPU computes in it by itself
    with pytest.raises(UnsupportedError, match="float16"):
        read_question(other, Environment(home=home))
