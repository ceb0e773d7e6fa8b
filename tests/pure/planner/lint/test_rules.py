"""The table of rules: whole, explained, in the reference page; and what cannot be decided is said."""

import re
from pathlib import Path

import msgspec
import pytest
from tests.pure.lab.metrics.logs import steady_log
from tests.pure.planner.lint.worlds import config, run, workload

from paceline.contracts.lint import LintResult, Severity, at_least
from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError
from paceline.planner.lint import RULES, lint, rule_of

TESTS = Path(__file__).resolve().parents[3]
DOCS = TESTS.parent / "docs" / "reference" / "lint.md"
CODES = [rule.code for rule in RULES]


def test_codes_are_those_of_the_field_in_order_and_once():
    assert [*(f"PL10{i}" for i in range(1, 9)), *(f"PL2{i:02d}" for i in range(1, 13))] == CODES


def test_every_rule_is_decided_from_something_and_explained():
    for rule in RULES:
        assert rule.sources, rule.code
        assert rule.what, rule.code
        assert rule.evidence, rule.code
        assert rule.fix, rule.code


def test_the_reference_page_has_a_row_for_each():
    text = DOCS.read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| {rule.code} | {rule.title} |" in text, rule.code


def test_each_rule_is_shown_by_tests_that_are_there():
    """In the table of the reference page: code, from a configuration, from a run, what is better with the fix."""
    section = DOCS.read_text(encoding="utf-8").partition("## How each rule is shown")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines()]
    shown = {row[0].strip("| "): row[1:] for row in rows if row[0].strip("| ").startswith("PL")}
    assert list(shown) == CODES
    for code, (config_cell, run_cell, better) in shown.items():
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", config_cell)
        assert named, code
        assert run_cell.startswith("the same") or "::" in run_cell, code
        assert better, code
        for file, test in [*named, *re.findall(r"`(test_\w+\.py)::(test_\w+)`", run_cell)]:
            sources = [path.read_text(encoding="utf-8") for path in TESTS.rglob(file)]
            (source,) = [each for each in sources if f"def {test}(" in each]
            assert f'"{code}"' in source, f"{code}: {file} asks for no such rule"


def test_a_rule_is_judged_or_skipped_with_a_reason():
    for facts in (config(), config(workload(), (SloClass(tpot_s=1.0),)), run(steady_log(30))):
        result = lint(facts)
        assert set(result.judged) | set(result.skipped) == set(CODES)
        assert not set(result.judged) & set(result.skipped)
        assert all(result.skipped.values())


def test_the_worst_comes_first_and_the_same_facts_say_the_same():
    facts = config(workload(input=64, output=16, cache={"protocol": []}), (SloClass(tpot_s=0.02),))
    first, second = lint(facts), lint(facts)
    assert first == second
    severities = [finding.severity for finding in first.findings]
    assert severities[0] is Severity.ERROR
    assert severities == sorted(severities, key=list(Severity).index, reverse=True)


def test_a_result_is_the_same_after_json():
    result = lint(config(workload(input=64, output=16), (SloClass(tpot_s=0.02),)))
    assert result.findings
    assert msgspec.json.decode(msgspec.json.encode(result), type=LintResult) == result


def test_severities_are_ordered():
    assert at_least(Severity.ERROR, Severity.WARNING)
    assert at_least(Severity.WARNING, Severity.WARNING)
    assert not at_least(Severity.INFO, Severity.WARNING)


def test_an_unknown_code_suggests_the_nearest():
    assert rule_of("pl101").code == "PL101"
    with pytest.raises(ConfigError, match="did you mean PL2"):
        rule_of("PL21")
