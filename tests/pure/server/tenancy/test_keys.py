"""Keys are found by their hash, salts never collide."""

import hashlib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.server.tenancy.keys import cache_salt, find_by_key, hash_key, new_key, presented_key, same_key


def test_a_new_key_is_long_random_and_found_by_its_hash():
    (one, its_hash), (other, _) = new_key(), new_key()
    assert one != other
    assert len(one) >= 43
    assert its_hash == hash_key(one) == hashlib.sha256(one.encode()).hexdigest()
    assert find_by_key(one, [("0" * 64, "x"), (its_hash, "y")]) == "y"
    assert find_by_key(other, [(its_hash, "y")]) is None
    assert same_key(one, one)
    assert not same_key(one, other)


def test_the_documented_shell_command_makes_the_same_hash():
    made = subprocess.run(
        ["sh", "-c", 'printf %s "$KEY" | sha256sum'],
        env={"KEY": "pl-abc", "PATH": "/usr/bin:/bin"},
        capture_output=True,
    )
    assert made.stdout.split()[0].decode() == hash_key("pl-abc")


@pytest.mark.parametrize(
    ("authorization", "alternative", "key"),
    [
        ("Bearer abc", None, "abc"),
        ("bearer  abc ", None, "abc"),
        ("Basic abc", None, None),
        ("Basic abc", "xyz", "xyz"),
        ("Bearer ", None, None),
        ("Bearer", " ", None),
        (None, "xyz", "xyz"),
        ("Bearer abc", "xyz", "abc"),
        (None, None, None),
    ],
)
def test_where_a_key_is_looked_for(authorization, alternative, key):
    assert presented_key(authorization, (alternative,)) == key


def test_a_key_of_odd_characters_is_only_a_wrong_key():
    assert find_by_key("\udcff\u00e9", [("0" * 64, "x")]) is None


names = st.text("ab\x00-", max_size=4)
salts = st.binary(max_size=4)


@given(names, salts, names, salts)
def test_no_two_pairs_of_tenant_and_salt_give_the_same_cache_salt(tenant, salt, other_tenant, other_salt):
    same = (tenant, salt) == (other_tenant, other_salt)
    assert (cache_salt(b"s", tenant, salt) == cache_salt(b"s", other_tenant, other_salt)) == same


def test_the_secret_decides_whether_a_salt_holds_over_a_restart():
    assert cache_salt(b"one", "t", b"") == cache_salt(b"one", "t", b"")
    assert cache_salt(b"one", "t", b"") != cache_salt(b"two", "t", b"")
    assert len(cache_salt(b"one", "t", b"x")) == 32
