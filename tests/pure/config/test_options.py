"""The option surface: complete metadata, unique names, and a frozen list that changes on purpose only."""

from pathlib import Path

import msgspec
import pytest

from paceline.config import GROUPS, EngineConfig, ServerConfig, full_table, option_table, server_table
from paceline.config.load import RENAMED
from paceline.config.options import sections
from paceline.config.server import SECRETS

SNAPSHOT = Path(__file__).with_name("options.txt")


def lines() -> list[str]:
    return [f"{o.path} {o.group} {'derived' if o.derived else o.default}".rstrip() for o in full_table().values()]


def test_option_list_is_the_committed_one():
    assert lines() == SNAPSHOT.read_text().splitlines(), (
        "the option list changed: if that is meant, update tests/pure/config/options.txt and docs (scripts/docs)"
    )


def test_every_option_belongs_to_exactly_one_known_group():
    assert all(o.group in GROUPS for o in full_table().values())
    assert len({o.name for o in full_table().values()}) == len(lines())


def test_every_option_says_what_it_does():
    for option in full_table().values():
        assert len(option.doc) > 20, option.path
        assert option.doc.endswith("."), option.path


@pytest.mark.parametrize("option", full_table().values(), ids=lambda o: o.path)
def test_default_is_a_value_the_option_accepts(option):
    assert msgspec.convert(option.default, option.type) == option.default
    assert not option.derived or option.default is None


def test_tree_is_frozen():
    with pytest.raises(AttributeError):
        EngineConfig().profile = "batch"


def test_sections_are_the_fields_of_the_tree():
    assert sections() == ("model", "cache", "scheduling", "device")


def test_options_of_the_server_are_not_the_engines():
    assert list(server_table()) == list(ServerConfig.__struct_fields__)
    assert not set(server_table()) & set(option_table())
    assert {o.section for o in server_table().values()} == {"server"}


def test_secrets_are_marked_and_never_shown():
    assert {o.name for o in server_table().values() if o.secret} == set(SECRETS)
    config = ServerConfig(api_key=("sesame",), admin_key="sesame", server_secret="sesame")
    assert "sesame" not in repr(config)
    assert "api_key" in repr(config)


def test_hints_for_other_engines_names_point_at_real_options():
    assert set(RENAMED.values()) <= set(option_table())
    assert not set(RENAMED) & set(option_table())
