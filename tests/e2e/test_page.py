"""The page at `/` in a real browser, against a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.fakes.server_process import MODEL, RunningServer, eventually, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

SIZES = {"wide": {"width": 1440, "height": 900}, "narrow": {"width": 375, "height": 812}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server({"step_ms": 4.0}) as server:
        yield server


@contextmanager
def opened(
    browser: Browser, url: str, *, size: str = "wide", expect: tuple[str, ...] = (), **context: Any
) -> Iterator[Page]:
    """The page, open. Afterwards: no error in its console and no failed request but those `expect` names."""
    troubles: list[str] = []
    with browser.new_context(viewport=SIZES[size], **context) as tab:  # type: ignore[arg-type]
        page = tab.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda m: troubles.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: troubles.append(f"exception: {error}"))
        page.on("requestfailed", lambda request: troubles.append(f"failed: {request.url} {request.failure}"))
        page.goto(url)
        page.wait_for_selector("#state:not([data-state=connecting])")
        yield page
        before_leaving = list(troubles)  # closing the tab cuts the live feed, which is no failure
    assert [t for t in before_leaving if not any(word in t for word in expect)] == []


def legend(page: Page, chart: str) -> dict[str, str]:
    """What a chart's legend says: label to value."""
    told = "items => items.map(li => [li.textContent, li.querySelector('b').textContent])"
    items = page.eval_on_selector_all(f"[data-chart={chart}] li", told)
    return {text.removesuffix(value).strip(): value for text, value in items}


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def keep_answering(page: Page) -> None:
    """Answers end at their limit, never by a token that happens to end them."""

    def ask(route: Route) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))

    page.route("**/v1/chat/completions", ask)


def last_answer(page: Page) -> Any:
    return page.locator(".answer").last


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_opens_clean_in_both_sizes_and_themes(browser, server, size, scheme):
    with opened(browser, server.base_url, size=size, color_scheme=scheme, device_scale_factor=2) as page:
        page.wait_for_selector("#state[data-state=ready]")
        assert page.inner_text("#model") == MODEL
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        wider = (
            "all => all.filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
        )
        assert page.eval_on_selector_all("main *, header *", wider) == []
        red, green, blue = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).slice(0, 3)"
        )
        assert (red + green + blue > 600) == (scheme == "light")
        sharp = (
            "[...document.querySelectorAll('canvas')].every(c => c.width === Math.round(c.clientWidth * 2) && c.width)"
        )
        assert page.evaluate(sharp), "canvases have a pixel for each of the display's"
        assert page.locator("canvas").count() == 8


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_a_picture_to_be_looked_at(browser, server, tmp_path, size):
    with opened(browser, server.base_url, size=size, device_scale_factor=2) as page:
        page.wait_for_selector("#state[data-state=ready]")
        page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_everything_comes_from_this_server_under_a_strict_policy(browser, server):
    answer = httpx.get(server.base_url + "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'; connect-src 'self'" in policy
    assert "unsafe" not in policy
    tag = {"if-none-match": answer.headers["etag"]}
    assert httpx.get(server.base_url + "/", headers=tag).status_code == 304
    assert httpx.head(server.base_url + "/static/app.css").headers["content-type"] == "text/css; charset=utf-8"
    for wrong in ("/static/missing.js", "/static/..%2f..%2fsession.py", "/static/%2e%2e/router.py"):
        assert httpx.get(server.base_url + wrong).status_code == 404
    asked: list[str] = []
    with browser.new_context() as tab:
        page = tab.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.base_url)
        page.wait_for_selector("#state[data-state=ready]")
    assert len(asked) > 8
    assert all(url.startswith(server.base_url) for url in asked)


def test_charts_move_under_load(browser, server):
    def load(index: int) -> int:
        body = {"model": MODEL, "prompt": f"{index} and the river " * 12, "max_tokens": 60, "ignore_eos": True}
        return httpx.post(f"{server.api_url}/completions", json=body, timeout=60.0).status_code

    pictures = "[...document.querySelectorAll('canvas')].map(c => c.toDataURL())"
    with opened(browser, server.base_url) as page:
        page.wait_for_selector("#state[data-state=ready]")
        before = page.evaluate(pictures)
        stop = threading.Event()

        def worker(index: int) -> list[int]:
            statuses = []
            while not stop.is_set():
                statuses.append(load(index))
            return statuses

        with ThreadPoolExecutor(24) as pool:
            workers = [pool.submit(worker, index) for index in range(24)]
            try:
                # more requests than the batch has rows
                eventually(lambda: legend(page, "requests")["waiting"] not in ("–", "0"))
                assert int(legend(page, "requests")["running"]) > 0
                eventually(lambda: legend(page, "ttft")["p95"] != "–")
                eventually(lambda: legend(page, "tpot")["p50"] != "–")
                eventually(lambda: legend(page, "batch")["prefill"] not in ("–", "0"))
                assert legend(page, "batch")["decode"] != "–"
                assert legend(page, "kv")["held"] not in ("–", "0 %")
                assert legend(page, "output")["output"] not in ("–", "0")
                eventually(lambda: legend(page, "hits")["from the cache"] not in ("–", "0 %"))
                assert legend(page, "step")["model"] != "–"
                after = page.evaluate(pictures)
            finally:
                stop.set()
        assert all(set(worker.result()) == {200} for worker in workers)
        assert all(one != other for one, other in zip(before, after, strict=True)), "a chart did not move"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.hover("[data-chart=requests] canvas")
        assert page.inner_text("#span").endswith("ago")


def test_recent_decisions_are_told_in_words(browser, server):
    with opened(browser, server.base_url) as page:
        assert server.complete(max_tokens=4, ignore_eos=True).status_code == 200
        newest = page.locator("#decisions tr:first-child td:last-child", has_text="ends at its limit, 4 tokens out")
        newest.wait_for()
        words = page.locator("#decisions td:last-child").all_inner_texts()
        assert words[1].startswith("starts: ")


def test_an_answer_streams_and_says_what_it_cost(browser, server):
    with opened(browser, server.base_url) as page:
        keep_answering(page)
        page.fill("#max-tokens", "80")
        page.fill("#temperature", "1")
        server.control("slow 0.2")  # 16 s in all, however busy the browser's machine is
        try:
            say(page, "hello river and stone")
            said = last_answer(page).locator(".said")
            first = eventually(lambda: len(said.inner_text()))
            assert page.locator("#send").is_hidden()
            eventually(lambda: len(said.inner_text()) > first)
            page.wait_for_selector(".answer.waiting")  # more than once it grew, and still it comes
        finally:
            server.control("")
        page.wait_for_selector(".answer:not(.waiting)")
        foot = last_answer(page).locator(".foot").inner_text()
        for label in ("TTFT", "tokens/s", "tokens", "cached"):
            assert label in foot
        page.locator("#send").wait_for(state="visible")
        say(page, "and again the river")
        page.wait_for_selector(".answer:nth-of-type(4):not(.waiting)")
        cached = last_answer(page).locator(".foot span", has_text="cached").inner_text()
        assert not cached.startswith("cached 0 of"), "the conversation so far is in the prefix cache"
        page.click("#clear")
        assert page.locator(".turn").count() == 0
        assert page.locator("#blank").is_visible()


def test_stop_ends_the_request_in_the_engine(browser, server):
    with opened(browser, server.base_url, expect=("ERR_ABORTED",)) as page:
        keep_answering(page)
        page.fill("#max-tokens", "400")
        server.control("slow 0.1")
        try:
            say(page, "hello")
            eventually(lambda: last_answer(page).locator(".said").inner_text())
            page.click("#stop")
            page.wait_for_selector(".answer:not(.waiting)")
            assert "stopped" in last_answer(page).locator(".foot").inner_text()
            eventually(lambda: server.ready()["open_requests"] == 0)
        finally:
            server.control("")


def test_what_a_model_writes_is_never_markup(browser, server):
    evil = "<img src=x onerror=alert(1)> **bold** `<b>`\n```html\n<script>alert(2)</script>\n```\n<b>plain</b>"
    chunk = httpx.Response(200, json={"choices": [{"index": 0, "delta": {"content": evil}, "finish_reason": "stop"}]})
    with opened(browser, server.base_url) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        stream = f"data: {chunk.text}\n\ndata: [DONE]\n\n"
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))
        say(page, "<u>hello</u>")
        page.wait_for_selector(".answer:not(.waiting)")
        said = last_answer(page).locator(".said")
        assert said.locator("img, script, b").count() == 0
        assert "<img src=x onerror=alert(1)>" in said.inner_text()
        assert said.locator("pre").inner_text() == "<script>alert(2)</script>"
        assert said.locator("strong").inner_text() == "bold"
        assert page.locator(".question u").count() == 0


def test_an_error_is_told_in_words_and_the_next_message_works(browser, server):
    with opened(browser, server.base_url, expect=("status of 400",)) as page:
        page.fill("#max-tokens", "8")
        say(page, "zq " * 600)
        page.wait_for_selector(".failed")
        assert "tokens" in page.inner_text(".failed")
        assert page.get_attribute(".failed", "role") == "alert"
        say(page, "hello")
        page.wait_for_selector(".answer .foot b")


def test_keys_are_asked_for_and_stay_in_the_tab_and_a_lost_server_is_told(browser):
    keys = {"api_key": ["user-key-1"], "admin_key": "operator-key-1"}
    expect = ("status of 401", "status of 403", "ERR_")
    with running_server(**keys) as server, opened(browser, server.base_url, expect=expect) as page:
        page.wait_for_selector("#state[data-state=locked]")
        assert "admin key" in page.inner_text("#notice-text")
        say(page, "hello")
        page.wait_for_selector("dialog[open]")
        page.fill("#api-key", "user-key-1")
        page.fill("#admin-key", "operator-key-1")
        page.press("#admin-key", "Enter")
        page.wait_for_selector("#state[data-state=ready]")
        eventually(lambda: page.inner_text("#model") == MODEL)
        page.fill("#max-tokens", "8")
        say(page, "hello")
        page.wait_for_selector(".answer .foot b")
        kept = page.evaluate("JSON.stringify(localStorage) + document.cookie + document.body.innerText + location.href")
        assert "key-1" not in kept
        assert page.input_value("#api-key") == ""

        server.stop()
        page.wait_for_selector("#state[data-state=lost]")
        assert "Trying again in" in page.inner_text("#notice-text")
        say(page, "hello")
        page.wait_for_selector(".answer:last-child .failed")
        assert page.inner_text(".answer:last-child .failed") == "The server cannot be reached."


def test_it_follows_the_engine_through_a_death(browser, server):
    with opened(browser, server.base_url) as page:
        page.wait_for_selector("#state[data-state=ready]")
        keep_answering(page)
        page.fill("#max-tokens", "400")
        server.control("slow 0.1")
        say(page, "hello")
        eventually(lambda: last_answer(page).locator(".said").inner_text())
        server.control("die")
        page.wait_for_selector(".failed")
        page.wait_for_selector("#state[data-state=restarting]")
        server.control("")
        page.wait_for_selector("#state[data-state=ready]")
        page.wait_for_selector("#notice", state="hidden")
        assert "-" not in "".join(legend(page, "output").values()), "no negative rate"
        page.fill("#max-tokens", "8")
        say(page, "hello")
        page.wait_for_selector(".answer:last-child .foot b")


def test_theme_keyboard_and_motion(browser, server):
    expect = ("ERR_ABORTED",)  # the feed, when the page is loaded again
    with opened(browser, server.base_url, expect=expect, color_scheme="light", reduced_motion="reduce") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").is_visible()
        page.keyboard.press("Enter")
        page.keyboard.type("hello")
        assert page.input_value("#prompt") == "hello"
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.click("#theme")
        dark = page.evaluate(ground)
        assert light != dark
        page.reload()
        assert page.evaluate(ground) == dark, "the choice is remembered"
        unnamed = "all => all.filter(e => !e.textContent && !e.labels?.length).map(e => e.id)"
        assert page.eval_on_selector_all("button:not([hidden]), input, textarea", unnamed) == []
        moving = "document.getAnimations().length"
        assert page.evaluate(moving) == 0
