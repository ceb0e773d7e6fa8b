"""Runs one Jinja template in a sandbox, with the conventions of Hugging Face chat templates and with limits.

A template is code by whoever made the model. The sandbox keeps it from Python's internals and from changing its inputs;
a budget bounds the steps it may take and the text it may make (`template_limits.py`). Jinja's `lipsum`, `urlize`,
`wordwrap` and `xmlattr`, which no chat template needs, are not there.

Conventions: trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves
non-ASCII text and HTML alone, and `{% generation %}` blocks, which mark what a training loss sees and are shown as they
are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from paceline.text.template_limits import (
    MAX_INDENT,
    MAX_STEPS,
    OWN_FILTERS,
    Counted,
    CountingTree,
    LimitedFormatter,
    TemplateLimitError,
    check_operator,
    check_percent,
    check_size,
    checked_join,
    checked_method,
    measured,
    spend,
    steps_left,
    weighed,
)

_NOT_OFFERED = ("urlize", "wordwrap", "xmlattr")
# Filters that look at no items of a value, and those that write all of it out or add all of it up.
_CONSTANT_TIME = frozenset(["length", "count", "first", "last", "default", "d", "items", "attr", "random"])
_WHOLE = frozenset(["tojson", "string", "pprint", "sum", "escape", "e", "forceescape", "safe", "urlencode", "sort"])


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(CountingTree().visit(source).set_environment(self), *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        spend()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text, by_map = str(value.__self__), value.__name__ == "format_map"

        def limited(*args: Any, **kwargs: Any) -> str:
            if by_map:
                (kwargs,) = args
                args = ()
            measured(text)
            return LimitedFormatter(self).vformat(text, args, kwargs)

        return limited

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - jinja's names
        spend()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, bytes)):
            args = checked_method(owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, (list, tuple)):
            measured(owner)
        elif isinstance(owner, int) and (args or kwargs):
            check_size(max(abs(a) if isinstance(a, int) else 0 for a in (*args, *kwargs.values())), __obj.__name__)
        elif isinstance(__obj, LoopContext) and args:  # the next level of a recursive loop
            args = (Counted(args[0]), *args[1:])
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(owner, (str, bytes)) or isinstance(result, str):
            measured(result)
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _limited(name: str, function: Any) -> Callable[..., Any]:
    """A filter or test of jinja's that counts what it reads and makes."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)  # also copies jinja's marks
    def limited(*args: Any, **kwargs: Any) -> Any:
        given = [*args[skipped:], *kwargs.values()]
        if name in _CONSTANT_TIME:
            spend()
        elif name in _WHOLE:
            for value in given:
                weighed(value, name)
        else:
            for value in given:
                measured(value)
        _check_filter(name, given, kwargs)
        if name == "join" and len(args) > skipped and not kwargs.get("attribute") and len(given) < 3:
            separator = given[1] if len(given) > 1 else ""
            args = (*args[:skipped], checked_join(separator, given[0]), *args[skipped + 1 :])
        result = function(*args, **kwargs)
        if isinstance(result, str):
            check_size(len(result), name)
        return result

    return limited


def _check_filter(name: str, given: list[Any], kwargs: Mapping[str, Any]) -> None:
    """Before a filter that makes more than it is given. `given`: the value, then its arguments."""
    value, rest = given[0] if given else None, given[1:]
    sizes = [abs(a) if isinstance(a, int) else len(a) if isinstance(a, (str, bytes)) else 0 for a in rest]
    most = max(sizes, default=0)
    if name == "center":
        check_size(most, name)
    elif name in ("batch", "slice"):
        spend(most)
    elif name in ("round", "indent") and most > MAX_INDENT:
        raise TemplateLimitError(f"{name} takes no size of {most}, at most {MAX_INDENT}")
    elif name == "indent" and isinstance(value, str):
        check_size(len(value) + (value.count("\n") + 1) * most, name)
    elif name == "replace":
        checked_method(str(value), name, tuple(str(a) if i < 2 else a for i, a in enumerate(rest)), {})
    elif name == "join" and (len(given) > 2 or kwargs):
        weighed(value if isinstance(value, (list, tuple, Mapping, str)) else None, name)
        check_size(most * (len(value) if isinstance(value, Sized) else 1), name)
    elif name == "format":
        check_percent(str(value), kwargs or tuple(rest))


def _finalize(value: Any) -> Any:
    """What `{{ }}` writes."""
    if isinstance(value, (list, tuple, Mapping)):
        weighed(value, "a value written out")
    elif isinstance(value, str):
        check_size(len(value), "a value written out")
    return value


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
    for given in (indent, *(separators or ())):
        size = given if isinstance(given, int) else len(given or "")
        if size > MAX_INDENT:
            raise TemplateLimitError(f"tojson takes no indent or separator of {size}, at most {MAX_INDENT}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _range(*args: int) -> range:
    items = range(*args)
    spend(len(items) if len(items) <= MAX_STEPS else MAX_STEPS + 1)
    return items


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    result = dict(*args, **kwargs)
    spend(len(result))
    return result


def compile_template(source: str, *, now: Callable[[], datetime] = datetime.now) -> jinja2.Template:
    """Raises jinja2.TemplateSyntaxError. `now` is what `strftime_now` shows."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_finalize
    )
    for name in _NOT_OFFERED:
        del environment.filters[name]
    environment.filters["tojson"] = _tojson
    for named in (environment.filters, environment.tests):
        named.update({name: _limited(name, function) for name, function in named.items()})
    environment.filters.update(OWN_FILTERS)
    del environment.globals["lipsum"]
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
    token = steps_left.set([MAX_STEPS])
    try:
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            if size > max_chars:
                raise TemplateLimitError(f"it wrote more than {max_chars} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        steps_left.reset(token)


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
