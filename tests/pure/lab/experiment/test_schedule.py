"""Order and seeds: drift hits all nodes alike, and equal repeats ask the same."""

from __future__ import annotations

import pytest

from paceline.lab.experiment.schedule import imbalance, points_of, search_point, visits


def test_abba_turns_round():
    names = [v.node for v in visits(["a", "b", "c"], 2, "ABBA", 0)]
    assert names == ["a", "b", "c", "c", "b", "a"]


@pytest.mark.parametrize("num_nodes", [2, 3, 5])
def test_a_linear_drift_adds_the_same_to_each_node(num_nodes):
    nodes = [f"n{i}" for i in range(num_nodes)]
    places: dict[str, list[int]] = {name: [] for name in nodes}
    for place, visit in enumerate(visits(nodes, 4, "ABBA", 0)):
        places[visit.node].append(place)
    assert len({sum(found) for found in places.values()}) == 1


def test_random_blocks_hold_every_node_once_and_repeat():
    once, again = (visits(["a", "b", "c"], 6, "random", 7) for _ in range(2))
    assert once == again
    for repeat in range(6):
        assert sorted(v.node for v in once if v.repeat == repeat) == ["a", "b", "c"]
    assert len({tuple(v.node for v in once if v.repeat == r) for r in range(6)}) > 1


def test_nodes_of_a_repeat_share_the_seed_and_repeats_do_not():
    seeds = {(v.node, v.repeat): p.seed for v in visits(["a", "b"], 2, "ABBA", 3) for p in points_of(v, [], 3)}
    assert seeds["a", 0] == seeds["b", 0] != seeds["a", 1] == seeds["b", 1]
    assert search_point("a", 2.0, 1, 3).seed == seeds["a", 1]


def test_ids_are_unique():
    ids = [p.id for v in visits(["a", "b"], 3, "ABBA", 0) for p in points_of(v, [1.0, 2.5], 0)]
    ids += [search_point(node, rate, 0, 0).id for node in "ab" for rate in (1.0, 2.5)]
    assert len(set(ids)) == len(ids) == 16


def test_an_order_that_does_not_protect_says_so():
    assert imbalance(2, "ABBA", 2) == "" == imbalance(3, "random", 2) == imbalance(1, "AB", 1)
    assert "3 repeats" in imbalance(3, "ABBA", 2)
    assert "order AB" in imbalance(2, "AB", 2)
