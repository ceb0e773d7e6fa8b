"""Two scores of one set: flips, intervals, and an answer that is right as often as it says."""

import random

import msgspec
import pytest

from paceline.errors import ConfigError
from paceline.lab.quality.paired import compare_scores, items_needed, worse_p
from paceline.lab.quality.score import ItemScore, SetScore


def scored(rights, expects=None, sha="s"):
    expects = expects or [""] * len(rights)
    items = tuple(
        ItemScore(id=str(i), right=right, expect=expect)
        for i, (right, expect) in enumerate(zip(rights, expects, strict=True))
    )
    return SetScore(set="toy", set_sha256=sha, source="x", model="m", items=items)


def test_flips_are_counted_and_named():
    (found,) = compare_scores(scored([1, 1, 0, 0, 1]), scored([1, 0, 1, 0, 0]), margin=0.02)
    assert (found.both, found.only_reference, found.only_candidate, found.neither) == (1, 2, 1, 1)
    assert found.lost == ("1", "4")
    assert found.won == ("2",)
    assert found.difference.value == pytest.approx(-0.2)
    assert found.mcnemar_p == 1.0
    assert found.answer == "inconclusive"
    assert "about" in found.sentence


def test_scores_that_were_asked_otherwise_do_not_pair():
    one = scored([1, 0])
    for other in (scored([1, 0], sha="other"), msgspec.structs.replace(one, max_tokens=64)):
        with pytest.raises(ConfigError, match="do not pair"):
            compare_scores(one, other)


def test_items_needed_are_those_of_the_published_table():
    assert items_needed(0.05, 0.02) in (772, 773)
    assert items_needed(0.05, 0.01) in (3091, 3092)
    assert items_needed(0.0, 0.02) is None


def test_equal_arms_of_enough_items_are_not_worse_and_a_planted_loss_is():
    draw = random.Random(1)
    base = [draw.random() < 0.8 for _ in range(1300)]
    same = [right if draw.random() > 0.03 else not right for right in base]
    lost = [right and draw.random() > 0.10 for right in base]
    assert compare_scores(scored(base), scored(base), margin=0.02)[0].answer == "not worse"
    found = compare_scores(scored(base), scored(lost), margin=0.02)[0]
    assert found.answer == "worse"
    assert found.worse_p < 0.001
    assert compare_scores(scored(base), scored(same), margin=0.05)[0].answer == "not worse"


def test_a_loss_of_exactly_the_margin_is_rarely_called_not_worse():
    """One-sided 5 %: 60 sets whose true loss is the margin, and few of them pass."""
    draw = random.Random(11)
    wrong = 0
    for _ in range(60):
        pairs = [draw.choices(("both", "lost", "won", "none"), (0.66, 0.07, 0.05, 0.22))[0] for _ in range(800)]
        base, new = [p in ("both", "lost") for p in pairs], [p in ("both", "won") for p in pairs]
        wrong += compare_scores(scored(base), scored(new), margin=0.02)[0].answer == "not worse"
    assert wrong <= 8  # 3 expected


def test_the_p_of_worse_agrees_with_the_answer():
    for counts in ((500, 60, 10, 100), (500, 40, 10, 100), (500, 20, 20, 100), (0, 5, 5, 0)):
        total = sum(counts)
        base = [True] * (counts[0] + counts[1]) + [False] * (counts[2] + counts[3])
        new = [True] * counts[0] + [False] * counts[1] + [True] * counts[2] + [False] * counts[3]
        found = compare_scores(scored(base), scored(new), margin=0.02)[0]
        assert found.num_items == total
        assert (found.answer == "worse") is (worse_p(counts, 0.02) < 0.05)


def test_refusals_are_two_comparisons():
    expects = ["refuse", "refuse", "answer", "answer"]
    found = compare_scores(scored([1, 1, 1, 0], expects), scored([0, 1, 1, 1], expects), margin=0.02)
    by_what = {each.what: each for each in found}
    assert by_what["refusing"].only_reference == 1
    assert by_what["answering"].only_candidate == 1


def test_what_does_not_pair_is_refused():
    with pytest.raises(ConfigError, match="do not pair"):
        compare_scores(scored([1]), scored([1], sha="t"))
    with pytest.raises(ConfigError, match="margin"):
        compare_scores(scored([1]), scored([1]), margin=2.0)
