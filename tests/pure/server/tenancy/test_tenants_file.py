"""A tenants file says what it means, or says where it is wrong."""

from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.server.tenancy.classes import BUILT_IN_CLASSES
from paceline.server.tenancy.keys import hash_key
from paceline.server.tenancy.tenants_file import read_tenants_file

HASH = hash_key("k")
GOOD = f"""
[classes.chat]
priority = -5
ttft_ms = 800
tpot_ms = 80.5
e2e_ms = 20_000
timeout_s = 60
shed = true
refuse_late = true

[tenants.alice]
key_sha256 = ["{HASH}", "{hash_key("k2").upper()}"]
classes = ["chat", "batch"]
priority_ceiling = -5
max_concurrency = 8
max_waiting = 4
tokens_per_minute = 60000
requests_per_minute = 600

[tenants.bob]
key_sha256 = ["{hash_key("bob")}"]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path, text) -> str:
    with pytest.raises(ConfigError) as caught:
        read_tenants_file(written(tmp_path, text))
    return str(caught.value)


def test_a_whole_file(tmp_path):
    found = read_tenants_file(written(tmp_path, GOOD))
    chat = found.classes["chat"]
    assert (chat.priority, chat.slo.ttft_s, chat.slo.tpot_s, chat.slo.e2e_s) == (-5, 0.8, 0.0805, 20.0)
    assert (chat.timeout_s, chat.shed, chat.refuse_late) == (60.0, True, True)
    assert set(found.classes) == {*BUILT_IN_CLASSES, "chat"}
    alice, bob = found.tenants["alice"], found.tenants["bob"]
    assert (alice.max_concurrency, alice.max_waiting, alice.tokens_per_minute) == (8, 4, 60000)
    assert (bob.classes, bob.tokens_per_minute) == (None, None)


def test_a_class_replaces_a_built_in_one_wholly(tmp_path):
    found = read_tenants_file(written(tmp_path, "[classes.interactive]\npriority = 3\n"))
    assert found.classes["interactive"].slo.ttft_s is None
    assert found.classes["interactive"].priority == 3


def with_tenant(lines: str) -> str:
    return f'[tenants.t]\nkey_sha256 = ["{HASH}"]\n{lines}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tenant.x]\n", ["[tenant]", "line 1", "did you mean [tenants.NAME]?"]),
        ("x = 1\n", ["unknown table", "[classes.NAME] or [tenants.NAME]"]),
        ("[tenants]\nalice = 1\n", ["[tenants]", "not a table of tables"]),
        ("\n[tenants.t]\nkeys = []\n", ["[tenants.t]", "line 3", "unknown key", "key_sha256"]),
        (with_tenant("token_per_minute = 5"), ["line 3", "seen: token_per_minute", "did you mean tokens_per_minute?"]),
        (with_tenant("max_concurrency = 0"), ["line 3", "max_concurrency cannot be that", "seen: 0", ">= 1"]),
        (with_tenant("max_concurrency = true"), ["line 3", "seen: True", "`int"]),
        (with_tenant('max_waiting = "many"'), ["line 3", "seen: 'many'"]),
        (with_tenant("classes = []"), ["line 3", "without a class"]),
        (with_tenant('classes = ["bach"]'), ["line 3", "unknown class", "did you mean batch?"]),
        (with_tenant("classes = [1]"), ["line 3", "classes cannot be that"]),
        (with_tenant("priority_ceiling = 5_000_000_000"), ["line 3", "priority_ceiling"]),
        ("[tenants.t]\nmax_waiting = 1\n", ["line 1", "a key is missing", "key_sha256"]),
        ("[tenants.t]\nkey_sha256 = []\n", ["line 2", "without a key"]),
        ("[tenants.t]\nkey_sha256 = 'x'\n", ["line 2", "key_sha256 cannot be that"]),
        (f'[tenants.t]\nkey_sha256 = ["{HASH}"]\n[tenants.u]\nkey_sha256 = ["{HASH}"]\n', ["line 4", "[tenants.t]"]),
        (f'[tenants."a b"]\nkey_sha256 = ["{HASH}"]\n', ["line 1", "this name cannot be", "'a b'"]),
        ("[classes.c]\nttft_ms = 0\n", ["[classes.c]", "line 2", "seen: 0"]),
        ("[classes.c]\nttft_ms = nan\n", ["line 2", "a finite number"]),
        ("[classes.c]\ntimeout_s = inf\n", ["line 2", "a finite number"]),
        ("[classes.c]\ntttft_ms = 5\n", ["line 2", "did you mean ttft_ms?"]),
        ("[classes.c]\nshed = true\n", ["line 2", "shed needs a ttft_ms"]),
        ("[tenants.t\n", ["not valid TOML", "line 1"]),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, words):
    message = refusal(tmp_path, text)
    missing = [word for word in words if word not in message]
    assert not missing, message


def test_a_key_in_clear_is_refused_and_not_shown(tmp_path):
    message = refusal(tmp_path, '[tenants.t]\nkey_sha256 = ["pl-very-secret"]\n')
    assert "very-secret" not in message
    assert "sha256sum" in message
    assert "very-secret" not in refusal(tmp_path, '[tenants.t]\nkey_sha256 = "pl-very-secret"\n')


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_tenants_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tenants_file(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tenants_file(tmp_path)
