"""Runs one Jinja template in a sandbox, with the conventions of Hugging Face chat templates and with limits.

A template is code by whoever made the model. The sandbox keeps it from Python's internals and from changing its inputs;
a budget bounds the steps it may take and the text it may write. Not covered: memory that one call of a string method
may take (a template that asks for a string of a gigabyte at once gets it), so templates of strangers deserve a look.

Conventions: trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves
non-ASCII text and HTML alone, and `{% generation %}` blocks, which mark what a training loss sees and are shown as they
are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 2_000_000  # attribute reads, calls, operators and items of ranges in one rendering
MAX_TEXT = 1 << 24  # characters of any one string an operator may make

_steps: ContextVar[list[int]] = ContextVar("paceline_template_steps")


class TemplateLimitError(Exception):
    """The template took too many steps or wrote too much."""


def _spend(steps: int = 1) -> None:
    left = _steps.get(None)
    if left is None:  # constant folding while compiling: MAX_TEXT bounds it
        return
    left[0] -= steps
    if left[0] < 0:
        raise TemplateLimitError(f"it took more than {MAX_STEPS} steps")


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "+"])

    def getattr(self, obj: Any, attribute: str) -> Any:
        _spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _spend()
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _spend()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _spend()
        size = 0
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            size = len(left) + len(right)
        elif operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and isinstance(times, int):
                    size = len(text) * times
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * max(right, 0)
        if size > MAX_TEXT:
            raise TemplateLimitError(f"operator {operator} would make something of size {size}")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` shows its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    def __init__(*args: Any, **kwargs: Any) -> None:  # `namespace(self=1)` must work, as in jinja
        self = args[0]
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace holds no name that starts with an underscore: {name!r}")


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _range(*args: int) -> range:
    items = range(*args)
    _spend(len(items) if len(items) <= MAX_STEPS else MAX_STEPS + 1)
    return items


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def compile_template(source: str, *, now: Callable[[], datetime] = datetime.now) -> jinja2.Template:
    """Raises jinja2.TemplateSyntaxError. `now` is what `strftime_now` shows."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda form: now().strftime(form),
        namespace=_Namespace,
        range=_range,
        dict=_dict,
    )
    return environment.from_string(source)


def run_template(template: jinja2.Template, variables: Mapping[str, Any], *, max_chars: int) -> str:
    """The text. Raises TemplateLimitError beyond the limits, and whatever the template raises."""
    token = _steps.set([MAX_STEPS])
    try:
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            if size > max_chars:
                raise TemplateLimitError(f"it wrote more than {max_chars} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        _steps.reset(token)


def line_of(error: BaseException) -> int | None:
    """Line of the template where the error came up, if jinja's traceback tells."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def takes_parts(source: str) -> bool:
    """Whether a template looks into message contents that are lists of parts (it loops over `content`, or asks whether
    content is a string); else contents must be strings. Raises jinja2.TemplateSyntaxError."""
    tree = _Sandbox(extensions=[_Generation, loopcontrols]).parse(source)

    def is_content(node: nodes.Node) -> bool:
        if isinstance(node, nodes.Getattr):
            return node.attr == "content"
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        return isinstance(node, nodes.Name) and node.name == "content"

    loops = any(is_content(loop.iter) for loop in tree.find_all(nodes.For))
    return loops or any(
        is_content(test.node) and test.name in ("string", "iterable", "sequence", "mapping")
        for test in tree.find_all(nodes.Test)
    )
