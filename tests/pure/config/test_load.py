"""Files and flags to the tree: precedence, and what each kind of mistake is answered with."""

import pytest

from paceline.config import EngineConfig, ServerConfig, load_config, load_server_config, parse_assignment
from paceline.config.features import NOT_YET_OPTIONS
from paceline.config.options import option_table
from paceline.errors import ConfigError, UnsupportedError


def write(tmp_path, text):
    path = tmp_path / "paceline.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_default_tree():
    assert load_config() == EngineConfig()


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = write(
        tmp_path, 'profile = "batch"\n[scheduling]\nmax_num_seqs = 8\nmax_wait_ms = 5\n[cache]\nblock_size = 32\n'
    )
    config = load_config(path, {"max_num_seqs": 4})
    assert config.profile == "batch"
    assert config.scheduling.max_num_seqs == 4
    assert config.scheduling.max_wait_ms == 5.0
    assert config.cache.block_size == 32
    assert config.cache.enable_prefix_caching is True


def test_dashes_and_sections_name_the_same_option():
    for name in ("max-num-seqs", "--max-num-seqs", "scheduling.max_num_seqs"):
        assert load_config(None, {name: 3}).scheduling.max_num_seqs == 3


def test_unknown_flag_names_the_nearest_option():
    with pytest.raises(ConfigError, match="max_num_seqs"):
        load_config(None, {"max_num_seq": 4})


def test_unknown_option_in_a_file_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="did you mean enable_prefix_caching"):
        load_config(write(tmp_path, "[cache]\nenable_prefix_cache = true\n"))


def test_unknown_section_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean \[scheduling\]"):
        load_config(write(tmp_path, "[scheduler]\nmax_num_seqs = 4\n"))


def test_option_in_the_wrong_section_says_where_it_belongs(tmp_path):
    with pytest.raises(ConfigError, match=r"max_num_seqs in \[scheduling\]"):
        load_config(write(tmp_path, "[cache]\nmax_num_seqs = 4\n"))
    with pytest.raises(ConfigError, match="before the sections"):
        load_config(write(tmp_path, '[model]\nprofile = "batch"\n'))


def test_another_engines_name_gets_its_name_here():
    with pytest.raises(ConfigError, match="called memory_utilization here"):
        load_config(None, {"gpu_memory_utilization": 0.9})


@pytest.mark.parametrize("name", NOT_YET_OPTIONS)
def test_planned_option_is_refused_by_name(name):
    with pytest.raises(UnsupportedError, match="not in this version"):
        load_config(None, {name: 2})


def test_planned_options_are_not_in_the_tree():
    assert not set(NOT_YET_OPTIONS) & set(option_table())


@pytest.mark.parametrize(
    ("flags", "seen", "expected"),
    [
        ({"max_num_seqs": "many"}, "'many'", "a whole number, at least 1"),
        ({"max_num_seqs": 0}, "0", "at least 1"),
        ({"max_num_seqs": True}, "True", "a whole number"),
        ({"max_num_seqs": 2.5}, "2.5", "a whole number"),
        ({"memory_utilization": 1.5}, "1.5", "above 0, at most 1"),
        ({"memory_utilization": float("nan")}, "nan", "a number"),
        ({"max_wait_ms": float("inf")}, "inf", "a number"),
        ({"enable_prefix_caching": "yes"}, "'yes'", "true or false"),
        ({"profile": "fast"}, "'fast'", "one of interactive, batch, long-context"),
        ({"block_size": None}, "None", "a whole number"),
        ({"block_size": 24}, "24", "a power of two"),
    ],
)
def test_wrong_value_is_answered_with_seen_and_expected(flags, seen, expected):
    with pytest.raises(ConfigError) as caught:
        load_config(None, flags)
    assert seen in str(caught.value)
    assert expected in str(caught.value)


def test_wrong_choice_names_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean long-context"):
        load_config(None, {"profile": "long_context"})


def test_none_lifts_an_optional_bound():
    assert load_config(None, {"max_waiting_requests": "none"}).scheduling.max_waiting_requests is None


def test_broken_and_missing_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "no.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(write(tmp_path, "profile = \n"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_assignments_are_read_as_toml_and_else_as_text():
    assert parse_assignment("max_num_seqs=8") == ("max_num_seqs", 8)
    assert parse_assignment("enable_prefix_caching = false") == ("enable_prefix_caching", False)
    assert parse_assignment("model=a/b") == ("model", "a/b")
    with pytest.raises(ConfigError, match="name=value"):
        parse_assignment("max_num_seqs")


def test_a_file_serves_the_engine_and_the_server(tmp_path):
    path = write(tmp_path, '[scheduling]\nmax_num_seqs = 8\n[server]\nport = 9000\napi_key = ["a", "b"]\n')
    assert load_config(path).scheduling.max_num_seqs == 8
    server = load_server_config(path, {"host": "::1", "served-model-name": "m"})
    assert (server.port, server.api_key, server.host, server.served_model_name) == (9000, ("a", "b"), "::1", ("m",))
    assert load_server_config(path, {"port": 1}).port == 1
    assert load_server_config() == ServerConfig()


def test_options_of_the_server_are_checked_like_the_others(tmp_path):
    with pytest.raises(ConfigError, match="did you mean drain_timeout_s"):
        load_server_config(write(tmp_path, "[server]\ndrain_timeout = 3\n"))
    with pytest.raises(ConfigError, match="at most 65535"):
        load_server_config(None, {"port": 70000})
    with pytest.raises(ConfigError, match="a list of texts"):
        load_server_config(None, {"api_key": 5})
    with pytest.raises(ConfigError, match=r"port in \[server\]"):
        load_config(write(tmp_path, "[device]\nport = 1\n"))
    with pytest.raises(ConfigError, match=r"did you mean \[server\]"):
        load_config(write(tmp_path, "[serve]\nport = 1\n"))
    with pytest.raises(ConfigError, match="unknown option"):
        load_config(None, {"port": 1})
    with pytest.raises(ConfigError, match="unknown option"):
        load_server_config(None, {"block_size": 1})
