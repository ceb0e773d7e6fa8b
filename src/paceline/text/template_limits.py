"""What a chat template may use up: steps, and the size of any one text.

A step is a turn of a loop, a call, an operator, a filter, a read of an attribute, an item of a list that one of these
walks over, or 128 characters that one of these reads or makes. What would make something large is measured before it
is made. Loops, `~`, comparisons and slices are not calls in what jinja compiles to, so the syntax tree is rewritten:
each gets a filter that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from string import Formatter
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.sandbox import SandboxedFormatter
from jinja2.visitor import NodeTransformer

MAX_STEPS = 2_000_000  # in one rendering
MAX_TEXT = 1 << 24  # characters of any one text, items of any one list
MAX_BITS = 1 << 14  # of a product or power
MAX_INDENT = 256  # of JSON and of lines, in characters
_CHARS_PER_STEP_BITS = 7

steps_left: ContextVar[list[int]] = ContextVar("paceline_template_steps")


class TemplateLimitError(Exception):
    """The template took too many steps or made something too large."""


def spend(steps: int = 1) -> None:
    left = steps_left.get(None)
    if left is None:  # constant folding while compiling: MAX_TEXT bounds it
        return
    left[0] -= steps
    if left[0] < 0:
        raise TemplateLimitError(f"it took more than {MAX_STEPS} steps")


def check_size(size: int, what: str) -> None:
    """Before something of `size` characters or items is made."""
    if size > MAX_TEXT:
        raise TemplateLimitError(f"{what} would make something of size {size}, more than {MAX_TEXT}")
    spend(size >> _CHARS_PER_STEP_BITS)


def measured(value: Any) -> int:
    """Spend what it takes to walk over `value` once, its items not included; its length."""
    if isinstance(value, (str, bytes)):
        spend(1 + (len(value) >> _CHARS_PER_STEP_BITS))
        return len(value)
    if isinstance(value, (list, tuple, Mapping)):
        spend(1 + len(value))
        return len(value)
    spend()
    return 1


def weighed(value: Any, what: str) -> int:
    """Characters of `value` written out, about; each place of a shared item counts. Every item takes a step."""
    size, stack = 0, [value]
    while stack:
        item = stack.pop()
        measured(item)
        if isinstance(item, (str, bytes)):
            size += len(item) + 2
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            stack += item
        elif isinstance(item, int):
            size += item.bit_length() // 3 + 1
        else:
            size += 8
        if size > MAX_TEXT:
            raise TemplateLimitError(f"{what} would make something of size {size} or more")
    check_size(size, what)
    return size


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right`."""
    spend()
    kinds = (str, bytes, list, tuple)
    if operator == "+" and isinstance(left, kinds) and isinstance(right, kinds):
        check_size(len(left) + len(right), "operator +")
    elif operator == "*":
        for text, times in ((left, right), (right, left)):
            if isinstance(text, kinds) and isinstance(times, int):
                check_size(len(text) * times, "operator *")
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, (str, bytes)):
        check_percent(left, right)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateLimitError(f"it would make a number of {bits} bits, more than {MAX_BITS}")


def check_percent(form: str | bytes, values: Any) -> None:
    """Before `form % values`."""
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    size = measured(text) + sum(map(_int_of, re.findall(r"[0-9]+", text)))
    weight = weighed(values, "operator %")
    if "*" in text and isinstance(values, tuple):
        size += sum(abs(value) for value in values if isinstance(value, int))
    check_size(size + weight * (text.count("%") if isinstance(values, Mapping) else 1), "operator %")


def _int_of(digits: str) -> int:
    return int(digits) if len(digits) < 10 else MAX_TEXT + 1


def checked_method(text: str | bytes, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Before `text.name(*args, **kwargs)`; the arguments to call it with (an iterator is read here)."""
    size = measured(text)
    for arg in (*args, *kwargs.values()):
        measured(arg)
    numbers = [abs(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, int)]
    if name in ("center", "ljust", "rjust", "zfill"):
        check_size(max([size, *numbers]), name)
    elif name == "expandtabs":
        check_size(size * (1 + max(numbers, default=8)), name)
    elif name == "replace":
        given = {**dict(zip(("old", "new", "count"), args, strict=False)), **kwargs}
        old, new, count = given.get("old"), given.get("new"), given.get("count", -1)
        if isinstance(old, type(text)) and isinstance(new, type(text)) and isinstance(count, int):
            found = text.count(old)  # type: ignore[arg-type]
            check_size(size + (found if count < 0 else min(found, count)) * len(new), name)
    elif name == "join" and args:
        args = (checked_join(text, args[0]), *args[1:])
    elif name == "translate":
        table = args[0] if args and isinstance(args[0], Mapping) else {}
        check_size(size * max([1, *(len(new) for new in table.values() if isinstance(new, str))]), name)
    else:
        check_size(size, name)
    return args


def checked_join(separator: Any, items: Iterable[Any]) -> list[Any]:
    """Before `separator.join(items)`; the items as a list."""
    read = list(Counted(items))
    gaps = len(separator) * len(read) if isinstance(separator, (str, bytes)) else 0
    check_size(gaps + weighed(read, "join"), "join")
    return read


class LimitedFormatter(SandboxedFormatter):
    """`str.format` in the sandbox, for one call."""

    _size = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        self._size += sum(map(_int_of, re.findall(r"[0-9]+", format_spec))) + weighed(value, "format")
        check_size(self._size, "format")
        return Formatter.format_field(self, value, format_spec)


class Counted:
    """An iterable each of whose items takes `cost` steps."""

    def __init__(self, items: Iterable[Any], cost: int = 1) -> None:
        self._items, self._cost = items, cost

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            spend(self._cost)
            yield item

    def __len__(self) -> int:  # TypeError for an iterator, as jinja's `loop` expects
        return len(self._items)  # type: ignore[arg-type]


# The filters that the rewritten tree calls. Taking the context keeps jinja from running them while it compiles.


@pass_context
def _counted(_context: Any, items: Any, cost: int) -> Counted:
    return Counted(items, cost)


@pass_context
def _cost(_context: Any, steps: int) -> str:
    spend(steps)
    return ""


@pass_context
def _concat(_context: Any, items: list[Any]) -> str:
    weighed(items, "operator ~")
    return "".join(map(str, items))


@pass_context
def _compared(_context: Any, value: Any) -> Any:
    if isinstance(value, (list, tuple, Mapping)):
        weighed(value, "a comparison")
    else:
        measured(value)
    return value


@pass_context
def _searched(_context: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        measured(value)
    return value


@pass_context
def _sliced(_context: Any, value: Any) -> Any:
    if isinstance(value, (str, bytes, list, tuple)):
        check_size(len(value), "a slice")
    return value


OWN_FILTERS = {
    f"paceline{function.__name__}": function for function in (_counted, _cost, _concat, _compared, _searched, _sliced)
}


class CountingTree(NodeTransformer):
    """Rewrites a template's tree so that its loops, macros, `~`, comparisons and slices count."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja's name
        cost = _body_cost(node)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "paceline_counted", nodes.Const(cost))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802 - jinja's name
        return self._charged(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802 - jinja's name
        return self._charged(node)

    def _charged(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        cost = nodes.Const(_body_cost(node), lineno=node.lineno)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered(cost, "paceline_cost"), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja's name
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "paceline_concat")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - jinja's name
        self.generic_visit(node)
        if any(operand.op not in ("in", "notin") for operand in node.ops):
            node.expr = _filtered(node.expr, "paceline_compared")
        for operand in node.ops:
            name = "paceline_searched" if operand.op in ("in", "notin") else "paceline_compared"
            operand.expr = _filtered(operand.expr, name)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - jinja's name
        self.generic_visit(node)
        return _filtered(node, "paceline_sliced") if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: Any, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _body_cost(node: nodes.Node) -> int:
    """Steps for what a body does beside what counts by itself: writing its own text, and its plain statements."""
    chars = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    return 1 + (chars >> _CHARS_PER_STEP_BITS) + (sum(1 for _ in node.find_all(nodes.Stmt)) >> 5)
