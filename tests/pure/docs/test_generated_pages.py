"""Generated pages are those the tables give, and the coverage table claims nothing that is not there."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from paceline.cli.main import app

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "docs" / "reference" / "guide_coverage.toml"


def script(name):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def coverage():
    return script("guide_coverage")


@pytest.fixture(scope="module")
def points(coverage):
    return [p for section in coverage.load(TABLE) for p in section.points]


@pytest.mark.parametrize("name", ["config.md", "compatibility.md", "guide-coverage.md", "guide-coverage.zh.md"])
def test_committed_page_is_the_generated_one(name):
    pages = script("generate_docs").pages()
    path = ROOT / "docs" / "reference" / name
    assert path.read_text(encoding="utf-8") == pages[path], "run scripts/docs"


def test_every_id_of_the_guide_has_a_row(points):
    sizes = {
        1: 4,
        2: 4,
        3: 3,
        4: 2,
        5: 3,
        6: 3,
        7: 5,
        8: 5,
        9: 1,
        10: 6,
        11: 1,
        12: 3,
        13: 3,
        14: 2,
        15: 1,
        16: 1,
        17: 1,
    }
    expected = {f"{section}.{i}" for section, size in sizes.items() for i in range(1, size + 1)}
    assert {p.id for p in points} == expected | {f"A.{i}" for i in range(1, 7)}


def test_every_named_test_exists(points):
    named = [test for p in points for test in p.tests]
    assert named
    for test in named:
        path, _, function = test.partition("::")
        assert (ROOT / path).is_file(), test
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert function in functions, test


def test_every_named_command_and_flag_exists(points):
    root = get_command(app)
    for point in points:
        words = point.command.split()
        if not words or words[0] == "make":
            continue
        assert words[0] == "paceline", point.command
        command = root
        for word in words[1:]:
            if word.startswith("-"):
                names = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
                assert word.split("=")[0] in names, f"{point.command}: {word}"
            elif hasattr(command, "commands"):
                assert word in command.commands, point.command
                command = command.commands[word]


def test_every_make_target_named_exists(points):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {p.command.split()[1] for p in points if p.command.startswith("make ")} <= targets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('id = "1", en = "a", zh = "b", command = "paceline x"', "claims something without a test"),
        ('id = "1", en = "a", zh = "b", tests = ["t"]', "when it does not pay"),
        ('id = "1", en = "a", zh = "b", test = "t"', "unknown fields"),
    ],
)
def test_half_delivered_points_are_refused(coverage, tmp_path, text, words):
    table = tmp_path / "t.toml"
    table.write_text(f'[[section]]\nnumber = "1"\nen = "A"\nzh = "B"\npoint = [ {{ {text} }} ]\n', encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        coverage.load(table)
