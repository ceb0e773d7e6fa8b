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


def printed(served: Served, page: str) -> str:
    """What the page's program prints."""
    text = (ROOT / "docs" / "guides" / page).read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    assert "http://127.0.0.1:8000" in program
    program = program.replace("http://127.0.0.1:8000", served.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"
    return done.stdout


STRUCTURED = r"""name='.*' country='.*' on_the_sea=(True|False)
(yes|no|it depends)
\+\d{2} \d{3} \d{4}
\d\+\d\+\d
The cat [a-z]{3,8}\.
(?P<legs>\{.*?\})
(?P<dog>\{.*?\})
.*uniqueItems.*
(?P<numbers>\[[^]]*\])
"""


def test_answers_have_the_form_that_was_asked_for(served: Served) -> None:
    output = printed(served, "structured-output.md")
    found = re.fullmatch(STRUCTURED, output, flags=re.DOTALL)
    assert found, output
    assert json.loads(found["legs"])["legs"] in (3, 4)
    assert set(json.loads(found["dog"])) == {"name", "legs"}
    assert len(json.loads(found["numbers"])) <= 4


def test_calls_come_and_are_answered_and_stream(served: Served) -> None:
    call, *answer, parts = printed(served, "tools.md").splitlines()
    assert call.startswith("tool_calls get_forecast {'place': ")
    assert answer
    streamed = parts.replace("|", "")
    assert streamed.startswith("get_forecast{"), parts
    assert 1 <= json.loads(streamed.removeprefix("get_forecast"))["days"] <= 10
