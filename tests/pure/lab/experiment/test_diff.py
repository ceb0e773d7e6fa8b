"""An edge changes one group: by the names it gives, and by what the servers really run with."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.lab.experiment.diff import (
    Resolved,
    check_edge,
    check_names,
    declared,
    differences,
    pins,
    resolved,
)
from paceline.lab.experiment.groups import DECLARED, GROUPS, canonical, group_of

KNOWN = {"max_num_seqs": "batch", "watermark": "kv", "enable_prefix_caching": "prefix_cache", "port": "baseline"}


def report(**values):
    """Rows as /v1/internal/config has them. A value in a tuple was derived by the server."""
    rows = []
    for name, value in values.items():
        derived = isinstance(value, tuple)
        rows.append(
            {
                "name": f"section.{name}",
                "value": value[0] if derived else value,
                "group": KNOWN[name],
                "source": "profile" if derived else "set",
            }
        )
    return {"options": rows}


def test_two_groups_named_in_one_edge_are_refused():
    check_names("wide", "batch", {"max_num_seqs": 16}, KNOWN, {})
    with pytest.raises(ConfigError, match="may change the group batch alone") as caught:
        check_names("wide", "batch", {"max_num_seqs": 16, "enable_prefix_caching": False}, KNOWN, {})
    assert "enable_prefix_caching (prefix_cache)" in str(caught.value)


def test_a_second_group_that_only_the_resolved_configuration_shows_is_refused():
    before = resolved(report(max_num_seqs=8, watermark=(0.02,)))
    after = resolved(report(max_num_seqs=16, watermark=(0.04,)))
    changes = differences(before, after, ["max_num_seqs"])
    assert [(c.name, c.group, c.asked) for c in changes] == [
        ("section.max_num_seqs", "batch", True),
        ("section.watermark", "kv", False),
    ]
    with pytest.raises(ConfigError, match=r"differ in more.*watermark \(kv\): 0.02 -> 0.04"):
        check_edge("wide", "batch", changes)
    check_edge("wide", "batch", changes[:1])


def test_an_edge_without_effect_is_refused():
    same = resolved(report(max_num_seqs=8))
    with pytest.raises(ConfigError, match="changes nothing"):
        check_edge("wide", "batch", differences(same, same, ["max_num_seqs"]))


def test_where_a_server_listens_is_no_difference():
    before = {"server.port": Resolved(value=1, group="baseline")}
    after = {"server.port": Resolved(value=2, group="baseline")}
    assert differences(before, after) == []


def test_an_option_only_one_side_has_is_a_difference():
    after = declared({"max_num_seqs": 4}, KNOWN, {})
    (change,) = differences({}, after, ["max_num_seqs"])
    assert (change.before, change.after, change.group) == (None, 4, "batch")


def test_what_the_parent_derived_is_pinned_but_for_the_edges_group():
    parent = resolved(report(max_num_seqs=(8,), watermark=(0.02,), enable_prefix_caching=True))
    assert pins(parent, "batch", []) == {"section.watermark": 0.02}
    assert pins(parent, "batch", ["watermark"]) == {}  # set on purpose
    assert pins(parent, None, []) == {"section.max_num_seqs": 8, "section.watermark": 0.02}
    assert pins(parent, "batch", [], "all") == pins(parent, None, [])
    assert pins(parent, "batch", [], "none") == {}


def test_groups_have_one_name_each():
    assert canonical("prefix") == "prefix_cache"
    assert canonical("quant") == "quantisation"
    with pytest.raises(ConfigError, match="did you mean batch"):
        canonical("bach")
    assert set(DECLARED.values()) <= set(GROUPS)


def test_an_option_nobody_knows_needs_its_group_said():
    assert group_of("--max-num-batched-tokens", {}, {}) == "batch"  # of vLLM
    assert group_of("-ngl", {}, {}) == "offload"  # of llama.cpp
    assert group_of("scheduling.max_num_seqs", KNOWN, {}) == "batch"
    assert group_of("my-knob", {}, {"my_knob": "compile"}) == "compile"
    assert group_of("env.MODE", {}, {"env.MODE": "kv"}) == "kv"
    with pytest.raises(ConfigError, match=r"\[server.groups\] my_knob"):
        group_of("my-knob", {}, {})
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        group_of("max_num_seq", KNOWN, {})


def test_environment_counts_as_options():
    found = declared({"env": {"MODE": "fast"}}, {}, {"env.MODE": "compile"})
    assert found == {"env.MODE": Resolved(value="fast", group="compile")}


def test_a_server_option_without_a_group_is_refused():
    with pytest.raises(ConfigError, match="has no group"):
        resolved({"options": [{"name": "x", "value": 1}]})
