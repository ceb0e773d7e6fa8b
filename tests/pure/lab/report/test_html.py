from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re

import numpy as np
from tests.fakes.lab.sample_runs import EVIL, SampleRun, sample_run

from paceline.contracts.artefact import Answer
from paceline.lab.report.html import local, page_html, script_json
from paceline.lab.report.page import Cell, Code, Facts, Figure, Gate, KeyNumber, Page, Section, Table, Warn, Words
from paceline.lab.report.run_page import run_page


def page_of(run: SampleRun) -> str:
    return page_html(run_page(run.info, run.metrics, run.records, run.server_metrics, run.verdict))


def test_the_same_page_gives_the_same_bytes(run):
    assert page_of(run) == page_of(run)


def test_nothing_is_fetched_from_anywhere(run):
    text = page_of(run)
    without_library = re.sub(r'<script type="text/plain" id="plotly">[^<]*</script>', "", text)
    addresses = re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?([^"'\s)>]+)""", without_library)
    assert addresses
    assert [a for a in addresses if not a.startswith(("#", "data:,"))] == []
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src" not in policy[1]
    assert "unsafe-eval" not in policy[1]


def test_the_policy_names_each_script_and_no_other(run):
    text = page_of(run)
    policy = set(re.findall(r"sha256-([A-Za-z0-9+/=]+)'", text.split("</head>")[0]))
    inline = re.findall(r"<script>(.*?)</script>", text, re.S)
    packed = re.search(r'id="plotly">([^<]+)<', text)
    assert packed is not None
    library = gzip.decompress(base64.b64decode(packed[1])).decode()
    scripts = [*inline, library]
    assert policy == {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert "plotly.js" in library[:200]


def test_the_library_is_stored_small(run):
    assert len(page_of(run)) < 3_000_000


def everything_evil() -> Page:
    table = Table((EVIL,), ((EVIL, Cell(EVIL, EVIL, href='javascript:"x"')),), caption=EVIL)
    figure = Figure("f", EVIL, [{"type": "bar", "name": EVIL, "x": [1], "y": [EVIL]}], {}, table, EVIL)
    blocks = (figure, table, Facts(((EVIL, EVIL),), EVIL), Code(EVIL, EVIL), Words(EVIL))
    return Page(
        kind="run", title=EVIL, answer=Answer.FAIL, sentence=EVIL, subtitle=(EVIL,), question=EVIL,
        what_would_change_it=EVIL, gates=(Gate(Answer.PASS, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL),),
        numbers=(KeyNumber(EVIL, EVIL, EVIL, EVIL, EVIL),), cautions=(Warn(EVIL, EVIL),),
        sections=(Section("s", EVIL, blocks, EVIL),),
    )  # fmt: skip


def test_words_from_outside_are_never_markup():
    text = page_html(everything_evil())
    assert "<img" not in text
    assert text.count("</script>") == 4  # theme, data, library, program
    assert html.escape(EVIL, quote=False).split("&gt;")[0] in text.replace("&#34;", '"').replace("&#39;", "'")


def test_a_link_goes_to_files_only():
    assert "javascript:" not in page_html(everything_evil())


def test_data_cannot_leave_its_script_element():
    hostile = {"a": EVIL, EVIL: ["\u2028", "<!--", "&"], "n": float("nan"), "i": float("inf"), "x": np.float64(1 / 3)}
    text = script_json(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": EVIL, EVIL: ["\u2028", "<!--", "&"], "n": None, "i": None, "x": 0.333333}
    assert json.loads(script_json({"a": np.array([1.0, np.nan])})) == {"a": [1.0, None]}


def test_a_hostile_model_stays_words_through_the_whole_page():
    run = sample_run(model=EVIL, name=EVIL, span_s=20.0)
    for record in run.records:
        record.reason = EVIL
    text = page_of(run)
    assert "<img" not in text
    data = re.search(r'id="figures">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data[1])


def test_only_files_beside_the_page_are_linked():
    for fine in ("nodes/a/rep0/report.html", "a%20b.html", "report.html"):
        assert local(fine) == fine
    for bad in ("javascript:x", "//host/x", "/etc/passwd", "../up.html", "a/../../b", "http://x", "a b", ""):
        assert local(bad) == ""
