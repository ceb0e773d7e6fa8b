"""paceline's source as syntax trees: modules, the imports each makes, and where."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "paceline"


@dataclass(frozen=True)
class Module:
    name: str  # "paceline.engine.loop"; a package is called by its folder
    path: Path
    tree: ast.Module

    @property
    def unit(self) -> str:
        """First name below paceline: the package or single file that the rules speak of. "" is paceline itself."""
        return [*self.name.split("."), ""][1]

    @property
    def relative(self) -> str:
        return str(self.path.relative_to(SRC))


@dataclass(frozen=True)
class Import:
    target: str  # dotted name; "paceline.x.y" for our own, full name for others
    line: int
    lazy: bool  # inside a function, or for type checking only


@cache
def modules() -> dict[str, Module]:
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return found


@cache
def imports(module: Module) -> list[Import]:
    """Every import of a module, at any depth. `from a import b` counts as a.b where that is a module, else as a."""
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.relative}:{node.lineno} relative import: write the full name"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append(Import(inner if inner in modules() else base, node.lineno, lazy))
        for child in ast.iter_child_nodes(node):
            deeper = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or _type_checking(node)
            visit(child, lazy or deeper)

    visit(module.tree, False)
    return found


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
