"""A page as one HTML file that needs nothing else: style, program, chart library and data are inside.

Everything that came from outside is escaped: words by the templates, data by `script_json`. Should something slip
through all the same, the page's own policy runs only scripts whose hash it names, and allows no connection at all.
The chart library is stored compressed, which makes the file less than half as large; the browser unpacks it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

import paceline
from paceline.lab.report.page import Figure, Page

_LOCAL = re.compile(r"[\w%.~-][\w%.~/-]*", re.ASCII)
_SCRIPT_ENDS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page_html(page: Page) -> str:
    """The whole file. The same page gives the same bytes."""
    figures = [figure for section in page.sections for figure in section.figures]
    ids = [figure.id for figure in figures] + [section.id for section in page.sections]
    assert len(ids) == len(set(ids)), f"an id twice among {ids}"
    theme, program = _asset("theme.js"), _asset("report.js")
    policy = [_sha256(theme), _sha256(program), _sha256(_plotly())]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            data=script_json([_figure_json(figure) for figure in figures]) if figures else "",
            plotly=_packed_plotly() if figures else "",
            style=_asset("report.css"),
            theme=theme,
            program=program,
            script_policy=" ".join(f"'sha256-{digest}'" for digest in policy),
            version=paceline.__version__,
        )
    )


def script_json(value: Any) -> str:
    """`value` as JSON that may stand in a script element, whatever its strings hold. nan and infinities become null."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda found: _SCRIPT_ENDS[found[0]], text)


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "id": figure.id,
        "traces": figure.traces,
        "layout": figure.layout,
        "views": [{"label": view.label, "layout": view.layout} for view in figure.views],
    }


def _finite(value: Any) -> Any:
    """Plain JSON of numpy scalars, tuples and floats that JSON has no word for; floats keep six digits."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy
        return _finite(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def local(href: str) -> str:
    """An address of a file beside or below this one, as it is; anything else becomes "" and is no link."""
    return href if _LOCAL.fullmatch(href) and ".." not in href.split("/") else ""


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("paceline.lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["local"] = local
    return environment


def _asset(name: str) -> str:
    return (files("paceline.lab.report") / "templates" / name).read_text("utf-8")


@cache
def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")


@cache
def _packed_plotly() -> str:
    return base64.b64encode(gzip.compress(_plotly().encode(), compresslevel=9, mtime=0)).decode()


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
