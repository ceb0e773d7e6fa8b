"""Environment variables: read in one place, listed, checked."""

from pathlib import Path

import pytest

from paceline.config import ENV_NAMES, read_environment
from paceline.errors import ConfigError


def test_defaults_without_any_variable():
    env = read_environment({})
    assert env.home == Path.home() / ".cache" / "paceline"
    assert env.hf_token is None
    assert not env.hf_offline


def test_home_follows_its_variable_then_the_cache_folder():
    assert read_environment({"PACELINE_HOME": "/data/p", "XDG_CACHE_HOME": "/c"}).home == Path("/data/p")
    assert read_environment({"XDG_CACHE_HOME": "/c"}).home == Path("/c/paceline")
    assert read_environment({"PACELINE_HOME": " "}).home == Path.home() / ".cache" / "paceline"


def test_only_listed_variables_are_read():
    asked = []

    class Spy(dict):
        def get(self, key, default=None):
            asked.append(key)
            return super().get(key, default)

    read_environment(Spy())
    assert set(asked) == set(ENV_NAMES)


def test_token_stays_out_of_the_text_form():
    env = read_environment({"HF_TOKEN": "hf_secret"})
    assert env.hf_token == "hf_secret"
    assert "secret" not in repr(env)


def test_values_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="HF_ENDPOINT"):
        read_environment({"HF_ENDPOINT": "hub.local"})
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        read_environment({"HF_HUB_OFFLINE": "maybe"})
