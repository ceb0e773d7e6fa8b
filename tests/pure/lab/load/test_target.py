import pytest
from tests.fakes.lab.loads import target_of

from paceline.errors import ConfigError
from paceline.lab.load import parse_url


@pytest.mark.parametrize(
    ("url", "base", "authority"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("localhost:8080", "http://localhost:8080", "localhost:8080"),
        ("https://api.example.com/v1", "https://api.example.com", "api.example.com"),
        ("https://gate.example.com/team/a/v1", "https://gate.example.com/team/a", "gate.example.com"),
        ("http://[::1]:9000", "http://[::1]:9000", "[::1]:9000"),
        ("http://h", "http://h", "h"),
    ],
)
def test_urls(url, base, authority):
    address = parse_url(url)
    assert (address.base_url, address.authority) == (base, authority)
    assert parse_url(address.base_url) == address


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:port", "http://h/?a=1", "http://h:99999"])
def test_what_is_no_url(url):
    with pytest.raises(ConfigError):
        parse_url(url)


def test_a_password_in_a_url_is_refused_and_not_shown():
    with pytest.raises(ConfigError) as caught:
        parse_url("http://me:hunter2@h")
    assert "hunter2" not in str(caught.value)


def test_keys_do_not_show():
    target = target_of("http://h", api_key="sk-secret", tenant_keys={"gold": "sk-gold"})
    assert "sk-" not in repr(target)
    assert "sk-" not in f"{target}"
    assert "sk-" not in str(target.__rich_repr__())
    assert [target.key_of(name) for name in (None, "gold", "other")] == ["sk-secret", "sk-gold", "sk-secret"]
