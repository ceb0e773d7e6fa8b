"""House rules a machine can check: file length, contracts of packages, environment, determinism, unsafe loads."""

import ast
import importlib

import pytest
from tests.arch.source import SRC, modules

MAX_LINES = 400
LONGER_BECAUSE: dict[str, str] = {}  # path below src/paceline -> why one idea needs that many lines

ENVIRONMENT_READERS = {
    "config/env.py": "the loader: reads the few variables that exist",
    "lab/quality/lm_eval.py": "a program that is started gets the caller's environment and its own settings",
}
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


def packages():
    return [pytest.param(m, id=m.name) for m in modules().values() if m.path.name == "__init__.py"]


def test_no_file_is_long_without_a_reason():
    long = {m.relative: n for m in modules().values() if (n := len(m.path.read_text().splitlines())) > MAX_LINES}
    assert sorted(long) == sorted(LONGER_BECAUSE), f"lines: {long}"


@pytest.mark.parametrize("package", packages())
def test_a_package_states_its_contract(package):
    assert ast.get_docstring(package.tree), f"{package.relative} has no docstring"
    defines = [
        n for n in package.tree.body if isinstance(n, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
    ]
    exports = [n for n in defines if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    module = importlib.import_module(package.name)
    if exports:
        assert hasattr(module, "__all__"), f"{package.relative} exports names without __all__"
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None


def test_every_module_has_a_docstring():
    assert [m.relative for m in modules().values() if not ast.get_docstring(m.tree)] == []


def test_environment_variables_are_read_in_one_place():
    readers: dict[str, list[int]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            attribute = isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv")
            name = (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and any(a.name in ("environ", "getenv", "putenv") for a in node.names)
            )
            if attribute or name:
                readers.setdefault(module.relative, []).append(node.lineno)
    assert set(readers) == set(ENVIRONMENT_READERS), readers


def test_nothing_that_runs_foreign_code_is_imported_or_called():
    bad = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [a.name.split(".")[0] for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0]]
            elif isinstance(node, ast.Call):
                called = node.func
                if isinstance(called, ast.Name) and called.id in ("eval", "exec"):
                    bad.append(f"{module.relative}:{node.lineno} {called.id}()")
                if isinstance(called, ast.Attribute) and ast.unparse(called) == "torch.load":
                    bad.append(f"{module.relative}:{node.lineno} torch.load()")
                if any(k.arg == "trust_remote_code" for k in node.keywords):
                    bad.append(f"{module.relative}:{node.lineno} trust_remote_code")
            bad += [f"{module.relative}:{node.lineno} {n}" for n in names if n in UNSAFE]
    assert not bad


def test_the_engine_never_hashes_text_and_never_walks_a_set():
    """`hash()` of text and the order of sets change from process to process; plans must not. Audits (`check`) may."""
    bad = []
    for module in modules().values():
        if module.unit not in ("engine", "contracts", "cost"):
            continue
        audits = [n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef) and n.name == "check"]
        exempt = {id(inner) for audit in audits for inner in ast.walk(audit)}
        for node in ast.walk(module.tree):
            if id(node) in exempt:
                continue
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
                bad.append(f"{module.relative}:{node.lineno} hash()")
            walked = [node.iter] if isinstance(node, (ast.For, ast.comprehension)) else []
            for value in walked:
                literal = isinstance(value, (ast.Set, ast.SetComp))
                called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "set"
                if literal or called:
                    bad.append(f"{module.relative}:{value.lineno} iterates over a set")
    assert not bad


def test_the_type_marker_ships():
    assert (SRC / "py.typed").exists()
