"""The page about scripts says all there is, and its script is one."""

import re
import tomllib
from pathlib import Path

import pytest

from paceline.lab.mock import Fault, Match, Reply, Rule, Script, ScriptChunk, Service, load_script

PAGE = (Path(__file__).parents[4] / "docs/reference/mock.md").read_text()


def test_its_script_loads():
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    script = load_script(tomllib.loads(block))
    assert script.service == Service(ttft_ms=200, tpot_ms=20, tokens_per_chunk=(5, 3), slots=8)
    assert len(script.rules) == 3


@pytest.mark.parametrize("part", [Script, Rule, Match, Reply, Service, Fault, ScriptChunk])
def test_it_has_every_name(part):
    missing = [
        name for name in part.__struct_fields__ if f"`{name}`" not in PAGE and not re.search(rf"\b{name} =", PAGE)
    ]
    assert missing == []
