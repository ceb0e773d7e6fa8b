"""The guides of structured output and tools are run: their Python, from top to bottom, against the model they name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.fakes.served_toy import Served, serve_model
from tests.fakes.server_process import ROOT

MODEL = "smollm2-135m"
pytestmark = pytest.mark.model(MODEL)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_model(MODEL, max_num_seqs=4) as server:
        yield server


def printed(served: Served, page: str) -> list[str]:
    """What the page's program prints, in lines."""
    text = (ROOT / "docs" / "guides" / page).read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    assert "http://127.0.0.1:8000" in program
    program = program.replace("http://127.0.0.1:8000", served.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def test_answers_have_the_form_that_was_asked_for(served: Served) -> None:
    city, choice, phone, total, cat, legs, dog, refusal, numbers = printed(served, "structured-output.md")
    assert re.fullmatch(r"name='.*' country='.*' on_the_sea=(True|False)", city)
    assert choice in ("yes", "no", "it depends")
    assert re.fullmatch(r"\+\d{2} \d{3} \d{4}", phone)
    assert re.fullmatch(r"\d\+\d\+\d", total)
    assert re.fullmatch(r"The cat [a-z]{3,8}\.", cat)
    assert json.loads(legs)["legs"] in (3, 4)
    assert set(json.loads(dog)) == {"name", "legs"}
    assert "uniqueItems" in refusal
    assert len(json.loads(numbers)) <= 4


def test_calls_come_and_are_answered_and_stream(served: Served) -> None:
    call, *answer, parts = printed(served, "tools.md")
    assert call.startswith("tool_calls get_forecast {'place': ")
    assert answer
    name, *arguments = parts.split("|")
    assert name == "get_forecast"
    assert 1 <= json.loads("".join(arguments))["days"] <= 10
