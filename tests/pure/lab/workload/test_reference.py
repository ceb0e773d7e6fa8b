"""The reference page: its examples load and run, and it leaves no key, kind or name out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from tests.pure.lab.workload.traces import samples
from tests.pure.lab.workload.traces.samples import saved

from paceline.lab.workload import MATRIX, load_spec, make_plan
from paceline.lab.workload.lengths import AnyLength
from paceline.lab.workload.spec import (
    AnyArrival,
    Cache,
    Documents,
    ExpectHit,
    FaultShares,
    Prefix,
    SloSpec,
    Stream,
    Turns,
    WorkloadSpec,
)
from paceline.lab.workload.traces import FORMATS

PAGE = (Path(__file__).parents[4] / "docs/reference/workload-spec.md").read_text(encoding="utf-8")
BLOCKS = {kind: re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("toml", "python")}


@pytest.mark.parametrize("text", BLOCKS["toml"])
def test_examples_make_plans(text: str, tmp_path: Path) -> None:
    table = tomllib.loads(text)
    for stream in table["stream"]:
        if stream["arrival"]["kind"] == "trace":
            saved(tmp_path, stream["arrival"]["file"], samples.MOONCAKE)
            table["duration_s"] = 3
    assert make_plan(load_spec(table, base=tmp_path)).requests


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = BLOCKS["python"]
    exec(compile(text, "workload-spec.md", "exec"), {})
    num, rps, tokens = capsys.readouterr().out.split()
    assert int(num) > 60
    assert float(rps) == pytest.approx(2, rel=0.5)
    assert int(tokens) > 0


TABLES = (WorkloadSpec, Stream, SloSpec, Cache, ExpectHit, Documents, FaultShares, Prefix, Turns)


@pytest.mark.parametrize("struct", [*TABLES, *get_args(AnyArrival), *get_args(AnyLength)])
def test_every_key_is_on_the_page(struct: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(struct):
        assert re.search(rf"[`{{ ,]{field.encode_name}[`, }}=]", PAGE), f"{struct.__name__}.{field.encode_name}"


def test_every_kind_format_and_name_is_on_the_page() -> None:
    kinds = [struct.__struct_config__.tag for struct in (*get_args(AnyArrival), *get_args(AnyLength))]
    for name in (*kinds, *FORMATS):
        assert f"| `{name}` |" in PAGE, name
    for name, description in MATRIX.items():
        assert f"| `{name}` | {description} |" in PAGE
