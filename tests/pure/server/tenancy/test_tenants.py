"""Who gets in, under which terms, and how much: the tenant book."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config import ServerConfig
from paceline.contracts.request import Usage
from paceline.contracts.slo import Slo
from paceline.errors import AuthError, ConfigError, ForbiddenError, RateLimitError, RequestError
from paceline.server.errors import error_headers, status_of
from paceline.server.tenancy.classes import BUILT_IN_CLASSES, ServiceClass
from paceline.server.tenancy.keys import hash_key
from paceline.server.tenancy.tenants import Tenant, TenantBook

CLASSES = ("default", "interactive", "batch")


def book_of(**limits) -> tuple[TenantBook, Tenant]:
    tenant = Tenant(name="t", classes=CLASSES, **limits)
    return TenantBook([tenant], keys=[(hash_key("k"), "t")]), tenant


# --- who


def test_without_file_and_keys_there_is_one_open_tenant():
    book = TenantBook.load()
    assert book.open
    assert book.authenticate(None).name == book.authenticate("Bearer anything").name == "default"
    assert book.names == ("default",)
    assert book.suggested_policy == "priority"


def test_api_keys_are_the_default_tenant():
    book = TenantBook.load(None, ["one", "two"])
    assert not book.open
    assert book.authenticate("Bearer two").name == "default"
    assert book.authenticate(None, "one").name == "default"
    for wrong in (None, "Bearer three", "Basic one", "Bearer "):
        with pytest.raises(AuthError) as caught:
            book.authenticate(wrong)
        assert status_of(caught.value) == 401
        assert "three" not in str(caught.value)


def test_a_file_and_keys_together(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(f'[tenants.alice]\nkey_sha256 = ["{hash_key("a").upper()}"]\nclasses = ["batch", "default"]\n')
    book = TenantBook.load(path, ["plain"])
    assert book.authenticate("Bearer a").name == "alice"
    assert book.authenticate("Bearer plain").name == "default"
    assert book.from_file
    assert book.suggested_policy == "fair"
    alice = book.authenticate("Bearer a")
    assert alice.priority_ceiling == BUILT_IN_CLASSES["default"].priority  # of its best class
    assert book.resolve(alice).service_class.name == "batch"


def test_a_file_of_classes_alone_leaves_the_server_open(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text("[classes.chat]\npriority = 1\n")
    book = TenantBook.load(path)
    assert book.open
    assert not book.from_file
    assert book.resolve(book.authenticate(None), "chat").priority == 1


# --- under which terms


def test_a_request_without_wishes_gets_its_tenants_first_class():
    book, tenant = book_of()
    service_class, priority, slo = book.resolve(tenant)
    assert (service_class.name, priority, slo) == ("default", 0, BUILT_IN_CLASSES["default"].slo)


def test_an_unknown_class_is_named_and_a_foreign_one_forbidden():
    book = TenantBook([Tenant(name="t", classes=("default",))])
    tenant = book.authenticate(None)
    with pytest.raises(RequestError, match="did you mean default") as caught:
        book.resolve(tenant, "defualt")
    assert caught.value.param == "service_class"
    with pytest.raises(ForbiddenError) as forbidden:
        book.resolve(tenant, "interactive")
    assert status_of(forbidden.value) == 403


def test_targets_may_be_loosened_and_added_but_not_tightened():
    book, tenant = book_of()
    slo = book.resolve(tenant, "interactive", None, Slo(ttft_s=9.0, e2e_s=1.0)).slo
    assert slo == Slo(ttft_s=9.0, tpot_s=BUILT_IN_CLASSES["interactive"].slo.tpot_s, e2e_s=1.0)
    with pytest.raises(RequestError, match="ttft_ms is tighter") as caught:
        book.resolve(tenant, "interactive", None, Slo(ttft_s=0.1))
    assert caught.value.param == "slo"


@pytest.mark.parametrize("priority", [True, 1.0, "1", 2**40])
def test_a_priority_is_a_whole_number(priority):
    book, tenant = book_of()
    with pytest.raises(RequestError) as caught:
        book.resolve(tenant, None, priority)
    assert caught.value.param == "priority"


def test_the_ceiling_refuses_what_was_asked_and_lowers_what_was_not():
    book, tenant = book_of(priority_ceiling=-3)
    assert book.resolve(tenant, None, -3).priority == -3
    assert book.resolve(tenant, None, 7).priority == 7
    assert book.resolve(tenant, "interactive").priority == -3
    with pytest.raises(RequestError, match="at least -3"):
        book.resolve(tenant, None, -4)


def test_deadlines_of_a_class_and_of_a_request():
    shed = ServiceClass(name="s", slo=Slo(ttft_s=2.0), timeout_s=30.0, shed=True)
    book = TenantBook([Tenant(name="t", classes=("s",))], classes={"s": shed})
    terms = book.resolve(book.authenticate(None))
    assert terms.deadlines(100.0) == (130.0, 102.0)
    assert terms.deadlines(100.0, 5.0) == (105.0, 102.0)
    assert terms.deadlines(100.0, 50.0) == (130.0, 102.0)
    plain, tenant = book_of()
    assert plain.resolve(tenant).deadlines(100.0) == (None, None)
    assert plain.resolve(tenant).deadlines(100.0, 1.0) == (101.0, None)


def test_no_clients_numbers_are_scheduled_for_but_later_ones_than_its_classs():
    strict = ServiceClass(name="s", slo=Slo(ttft_s=1.0, tpot_s=0.1))
    book = TenantBook([Tenant(name="t", classes=("s", "batch"))], classes={**BUILT_IN_CLASSES, "s": strict})
    tenant = book.authenticate(None)
    assert book.resolve(tenant).scheduled_for == strict.slo
    looser = book.resolve(tenant, "s", slo=Slo(ttft_s=9.0, e2e_s=1e-6))
    assert looser.scheduled_for == Slo(ttft_s=9.0, tpot_s=0.1)
    assert looser.slo.e2e_s == 1e-6  # measured by, as asked
    greedy = book.resolve(tenant, "batch", slo=Slo(ttft_s=1e-9, tpot_s=1e-9, e2e_s=1e-9))
    assert greedy.scheduled_for == Slo()
    with pytest.raises(RequestError, match="tighter"):
        book.resolve(tenant, "s", slo=Slo(tpot_s=0.01))


def test_salts_differ_by_tenant_and_are_narrowed_by_the_client():
    book = TenantBook.load(secret="s")
    one, two = (Tenant(name=name, classes=CLASSES) for name in ("one", "two"))
    salts = {book.salt(one), book.salt(two), book.salt(one, "x"), book.salt(two, b"x")}
    assert len(salts) == 4
    assert book.salt(one, "x") == book.salt(one, b"x") == TenantBook.load(secret=b"s").salt(one, "x")
    assert book.salt(one, "") == book.salt(one)
    assert TenantBook.load().salt(one) != TenantBook.load().salt(one)  # a secret of one run
    assert (book.has_secret, TenantBook.load().has_secret) == (True, False)


# --- how much


def test_concurrency_counts_sequences_and_comes_back():
    book, tenant = book_of(max_concurrency=3)
    first = book.admit(tenant, 10, 10, 0.0, num_sequences=2)
    second = book.admit(tenant, 10, 10, 0.0)
    with pytest.raises(RateLimitError) as caught:
        book.admit(tenant, 10, 10, 0.0)
    assert caught.value.limit == "concurrency"
    assert status_of(caught.value) == 429
    first.settle(None, 1.0)
    book.admit(tenant, 10, 10, 1.0, num_sequences=2)
    second.settle(Usage(), 1.0)
    use = book.usage_now()["t"]
    assert (use.open, use.waiting, use.refused["concurrency"]) == (2, 2, 1)


def test_waiting_is_bounded_until_the_first_token():
    book, tenant = book_of(max_waiting=1)
    lease = book.admit(tenant, 1, 1, 0.0)
    with pytest.raises(RateLimitError) as caught:
        book.admit(tenant, 1, 1, 0.0)
    assert caught.value.limit == "waiting"
    lease.started()
    lease.started()
    book.admit(tenant, 1, 1, 0.0)
    lease.settle(None, 0.0)
    assert book.usage_now()["t"].waiting == 1


@pytest.mark.parametrize(
    ("limits", "tokens", "num", "param"),
    [
        ({"tokens_per_minute": 100}, 101, 1, "max_tokens"),
        ({"max_concurrency": 2}, 1, 3, "n"),
        ({"max_waiting": 2}, 1, 3, "n"),
    ],
)
def test_what_can_never_be_let_in_is_no_matter_of_waiting(limits, tokens, num, param):
    book, tenant = book_of(**limits)
    with pytest.raises(RequestError, match="never") as caught:
        book.admit(tenant, tokens, 0, 0.0, num_sequences=num)
    assert not isinstance(caught.value, RateLimitError)
    assert caught.value.param == param
    book.admit(tenant, 1, 0, 0.0).settle(None, 0.0)


def test_the_reservation_is_settled_to_what_was_used():
    book, tenant = book_of(tokens_per_minute=600)
    lease = book.admit(tenant, 100, 400, 50.0)
    assert lease.headers(50.0)["x-ratelimit-remaining-tokens"] == "100"
    lease.settle(Usage(prompt_tokens=100, output_tokens=50), 50.0)
    assert book.headers(tenant, 50.0) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "450",
        "x-ratelimit-reset-tokens": "15.000s",
    }
    lease.settle(Usage(), 50.0)  # again: nothing more comes back
    assert book.headers(tenant, 50.0)["x-ratelimit-remaining-tokens"] == "450"
    book.admit(tenant, 100, 350, 50.0).settle(7, 50.0)
    assert book.headers(tenant, 50.0)["x-ratelimit-remaining-tokens"] == "443"


def test_requests_per_minute_are_not_given_back():
    book, tenant = book_of(requests_per_minute=2)
    for _ in range(2):
        book.admit(tenant, 1, 1, 0.0).settle(None, 0.0)
    with pytest.raises(RateLimitError) as caught:
        book.admit(tenant, 1, 1, 0.0)
    assert caught.value.limit == "requests"
    assert caught.value.retry_after_s == pytest.approx(30.0)
    assert error_headers(caught.value)["Retry-After"] == "30"
    assert caught.value.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_tenant_without_rates_has_no_headers():
    book, tenant = book_of(max_concurrency=1)
    assert book.headers(tenant, 0.0) == {}


MOVES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 10.0, 120.0]),
        st.sampled_from(["admit", "admit", "start", "settle", "cancel", "twice"]),
        st.integers(0, 80),
        st.integers(0, 80),
        st.integers(1, 3),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(MOVES)
def test_whatever_happens_limits_hold_waits_are_true_and_everything_comes_back_once(moves):
    tokens, requests, most = 120, 20, 4
    book, tenant = book_of(tokens_per_minute=tokens, requests_per_minute=requests, max_concurrency=most, max_waiting=3)
    now = 1000.0
    open_calls: list = []
    done: list = []
    used: list[tuple[float, int]] = []  # when the call came in, what it used in the end (all of it, while open)
    for passed, what, prompt, output, num in moves:
        now += passed
        if what == "admit":
            try:
                lease = book.admit(tenant, prompt, output, now, num_sequences=num)
            except RateLimitError as error:
                if error.limit in ("tokens", "requests"):  # alone, the same call is let in after that time
                    later = now + max(1, -(-error.retry_after_s // 1))
                    retried = book.admit(tenant, prompt, output, later, num_sequences=num)
                    open_calls.append((retried, len(used), num, prompt))
                    used.append((later, prompt + output))
                    now = later
            except RequestError:
                assert prompt + output > tokens
            else:
                open_calls.append((lease, len(used), num, prompt))
                used.append((now, prompt + output))
        elif open_calls:
            lease, index, num, prompt = open_calls[0]
            if what == "start":
                lease.started()
                continue
            open_calls.pop(0)
            done.append(lease)
            came, reserved = used[index]
            spent = min(reserved, prompt + output) if what != "cancel" else 0
            used[index] = (came, spent)
            lease.settle(Usage(prompt_tokens=min(prompt, spent), output_tokens=max(0, spent - prompt)), now)
            for each in done if what == "twice" else ():
                each.settle(Usage(), now)
        assert book.usage_now()["t"].open == sum(call[2] for call in open_calls) <= most
    for i, (first, _) in enumerate(used):
        total = 0
        for count, (last, amount) in enumerate(used[i:], start=1):
            total += amount
            assert total <= tokens / 60 * (last - first) + tokens + 0.01
            assert count <= requests / 60 * (last - first) + requests + 0.01
    for lease, *_ in open_calls:
        lease.settle(None, now)
    assert book.usage_now()["t"].open == book.usage_now()["t"].waiting == 0
    assert book.headers(tenant, now + 60)["x-ratelimit-remaining-tokens"] == str(tokens)


def test_targets_given_to_the_server_are_those_of_the_class_default(tmp_path: Path) -> None:
    book = TenantBook.of(ServerConfig(slo="ttft=1s, tpot=60ms"))
    tenant = book.authenticate(None)
    assert book.resolve(tenant).scheduled_for == Slo(ttft_s=1.0, tpot_s=0.06)
    assert book.resolve(tenant, "interactive").slo == BUILT_IN_CLASSES["interactive"].slo
    path = tmp_path / "tenants.toml"
    path.write_text("[classes.default]\nttft_ms = 500\n")
    with pytest.raises(ConfigError, match="given twice"):
        TenantBook.of(ServerConfig(slo="ttft=1s", tenants=str(path)))
    path.write_text("[classes.other]\nttft_ms = 500\n")
    assert TenantBook.of(ServerConfig(slo="e2e=9s", tenants=str(path))).classes["default"].slo == Slo(e2e_s=9.0)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=1", "ttft=0s", "speed=1s", "ttft=1s,ttft=2s", "share=0.9", "ttft=-1s"]
)
def test_targets_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="target"):
        TenantBook.of(ServerConfig(slo=text))


def test_a_tenant_by_name_else_whose_the_plain_keys_are() -> None:
    tenants = [Tenant(name="alice", classes=("default",)), Tenant(name="bob", classes=("batch",))]
    book = TenantBook(tenants)
    assert [book.named(name).name for name in ("bob", "nobody", None)] == ["bob", "alice", "alice"]
    assert TenantBook.load(None, ["key"]).named("alice").name == "default"
