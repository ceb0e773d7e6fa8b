"""The page's files, read as text: nothing from elsewhere or inline, no markup from strings, readable colours."""

import re

import pytest

from paceline.server.page.files import INDEX, page_files

FILES = {name: file.body.decode() for name, file in page_files().items()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}


def test_the_page_is_small():
    assert sum(len(file.body) for file in page_files().values()) < 64 * 1024


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_is_loaded_from_elsewhere(name):
    text = FILES[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|(?:src|href|url)\W{1,3}//", text)


def test_nothing_is_inline():
    html = FILES[INDEX]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", html)
    assert all(re.fullmatch(r"\s*", body) for body in re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL))


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_no_text_becomes_markup_or_code(name):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\(|Function\("
    )
    assert not re.search(forbidden, SCRIPTS[name])


def test_what_the_files_name_is_there():
    named = set(re.findall(r'"static/([\w.-]+)"', FILES[INDEX]))
    named |= {name for text in SCRIPTS.values() for name in re.findall(r'from "\./([\w.-]+)"', text)}
    assert named | {INDEX} == set(FILES), "a file that nobody asks for, or one that is missing"
    asked = {name for text in SCRIPTS.values() for name in re.findall(r'\$\("([\w-]+)"\)', text)}
    assert asked <= set(re.findall(r'\bid="([\w-]+)"', FILES[INDEX]))


def themes():
    """Colour variables of the light theme, the system's dark theme and the chosen dark theme."""
    css = FILES["app.css"]
    blocks = re.findall(r":root[^{]*\{([^}]*--ground[^}]*)\}", css)
    return [dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", block)) for block in blocks]


def luminance(colour):
    """Relative luminance of sRGB (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_both_ways_to_a_dark_page_give_the_same_one():
    light, by_system, by_choice = themes()
    assert by_system == by_choice
    assert light.keys() == by_choice.keys()


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_can_be_told_apart(theme):
    colours = themes()[theme]
    text = [("--ink", "--paper"), ("--ink", "--ground"), ("--ink", "--question"), ("--ink", "--bad-ground")]
    text += [("--muted", "--paper"), ("--muted", "--ground"), ("--accent", "--paper"), ("--on-accent", "--accent")]
    marks = [("--a", "--paper"), ("--b", "--paper"), ("--edge", "--paper"), ("--good", "--paper"), ("--bad", "--paper")]
    assert {pair: contrast(*map(colours.get, pair)) for pair in text if contrast(*map(colours.get, pair)) < 4.5} == {}
    assert {pair: contrast(*map(colours.get, pair)) for pair in marks if contrast(*map(colours.get, pair)) < 3.0} == {}
