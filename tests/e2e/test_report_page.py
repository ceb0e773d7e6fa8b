"""The report's pages in a real browser: a run, an experiment, two runs side by side, from files, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.fakes.lab.sample_experiments import sample_experiment_folder, sample_runs
from tests.fakes.lab.sample_matrix import sample_matrix
from tests.fakes.lab.sample_runs import EVIL, sample_run
from tests.fakes.server_process import eventually

from paceline.lab.artefact import canonical, write_run
from paceline.lab.report import render_comparison, render_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 375, "height": 812}}
KINDS = {"run": 4, "experiment": 4, "comparison": 4, "matrix": 1}  # charts at least


class Pages(dict[str, Path]):
    """Each kind of page, made when a test first wants it: several workers may share these tests."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, kind: str) -> Path:
        made: Path = getattr(self, f"_{kind}")()
        self[kind] = made
        return made

    @cached_property
    def _points(self) -> Path:
        return sample_experiment_folder(self._folder / "experiment", sample_runs())

    def _run(self) -> Path:
        run = sample_run()
        folder = self._folder / "run"
        write_run(folder, run.info, run.records, server_metrics=run.server_metrics, verdict=run.verdict)
        return render_report(folder)

    def _experiment(self) -> Path:
        return render_report(self._points)

    def _matrix(self) -> Path:
        run = sample_run()
        folder = self._folder / "matrix"
        write_run(folder / "steady", run.info, run.records, verdict=run.verdict)
        (folder / "matrix.json").write_bytes(canonical(sample_matrix("steady")))
        return render_report(folder)

    def _comparison(self) -> Path:
        nodes = self._points / "nodes"
        arms = nodes / "chunked-prefill/rep0", nodes / "prefix-cache/rep0"
        return render_comparison(*arms, self._folder / "comparison.html")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.mktemp("reports"))


@contextmanager
def opened(browser: Browser, file: Path, *, size: str = "wide", **context: Any) -> Iterator[Page]:
    """The page, its charts drawn. Afterwards: no error, no warning, nothing asked of anybody but the file itself."""
    troubles: list[str] = []
    with browser.new_context(viewport=SIZES[size], **context) as tab:  # type: ignore[arg-type]
        page = tab.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda m: troubles.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: troubles.append(f"exception: {error}"))
        page.on("request", lambda r: None if r.url.startswith("file:") else troubles.append(f"asked {r.url[:80]}"))
        page.goto(file.as_uri())
        page.wait_for_selector("body.ready")
        yield page
        page.wait_for_timeout(50)
        assert troubles == []


def becomes(page: Page, expression: str, argument: Any = None) -> None:
    """Wait until it is true. Playwright's own way evaluates text in the page, which the page's policy forbids."""
    eventually(lambda: page.evaluate(expression, argument))


WIDER = """() => [...document.querySelectorAll('main *, header *, footer *')].filter(e =>
  !e.closest('.scroll') && !e.closest('nav') && !e.closest('pre') && !e.closest('.skip') &&
  e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90))"""
# a chart is drawn when its plot holds marks that can be seen: paths, bars or points with a size
EMPTY = """() => [...document.querySelectorAll('.plot')].filter(plot => {
  const marks = [...plot.querySelectorAll('.mlayer path, .mlayer image')];
  return !marks.some(mark => { const box = mark.getBoundingClientRect(); return box.width + box.height > 1; });
}).map(plot => plot.id)"""
# words of one axis that lie on each other
CROWDED = """() => [...document.querySelectorAll('.plot')].flatMap(plot =>
  ['.xtick text', '.ytick text'].filter(kind => {
  const boxes = [...plot.querySelectorAll(kind)].map(t => t.getBoundingClientRect()).filter(b => b.width);
  return boxes.some((a, i) => boxes.slice(i + 1).some(b =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
}).map(kind => plot.id + ' ' + kind))"""


# every category of an axis has its name beside it
NAMELESS = """() => [...document.querySelectorAll('.plot')].filter(plot => {
  const axis = plot._fullLayout.yaxis;
  return axis.type === 'category' && axis.showticklabels &&
    plot.querySelectorAll('.ytick text').length !== axis._categories.length;
}).map(plot => plot.id)"""
# every chart lies on paper of the theme's colour: its red is given
PAPER = """red => [...document.querySelectorAll('.plot .main-svg:first-of-type')].every(svg =>
  svg.style.backgroundColor === '' || svg.style.backgroundColor.match(/\\d+/)[0] == red)"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_drawn_in_both_sizes_and_themes(browser, pages, kind):
    with opened(browser, pages[kind], color_scheme="light") as page:
        assert page.locator(".plot").count() == page.locator(".plot.drawn").count() >= KINDS[kind]
        for size in SIZES:
            page.set_viewport_size(SIZES[size])
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                fits = "Math.abs(plot.querySelector('.main-svg').getBoundingClientRect().width - plot.clientWidth) < 2"
                becomes(page, f"[...document.querySelectorAll('.plot')].every(plot => {fits})")
                becomes(page, PAPER, 255 if scheme == "light" else 25)
                check(page)


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_to_be_looked_at(browser, pages, tmp_path, kind, size):
    scheme = "light" if size == "wide" else "dark"
    with opened(browser, pages[kind], size=size, color_scheme=scheme) as page:
        page.screenshot(path=tmp_path / f"{kind}-{size}-{scheme}.png", full_page=True)
    assert (tmp_path / f"{kind}-{size}-{scheme}.png").stat().st_size > 10_000


def check(page: Page) -> None:
    """What must hold of every page at every size and in every theme."""
    assert page.evaluate(EMPTY) == [], "charts without a mark"
    assert page.evaluate(CROWDED) == [], "axis labels on each other"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert page.evaluate(WIDER) == []
    assert page.evaluate(NAMELESS) == [], "categories without their name"
    titles = "plots => plots.map(p => [...p.querySelectorAll('.xtitle, .ytitle')].map(t => t.textContent).join())"
    assert all(page.eval_on_selector_all(".plot", titles)), "a chart without a title on any axis"


def test_the_verdict_is_on_the_first_screen_of_a_phone(browser, pages):
    with opened(browser, pages["run"], size="narrow") as page:
        assert page.locator(".answer").bounding_box()["y"] < 500
        assert page.locator(".answer .chip").inner_text() == "fail"
        assert page.locator(".gates li").count() == 6
        assert page.locator(".gates .strip").count() == 5


def test_the_theme_is_a_choice_and_charts_follow(browser, pages):
    with opened(browser, pages["comparison"], color_scheme="light") as page:
        line = "document.querySelector('#chart-tpot .js-line').style.stroke"
        before = page.evaluate(line)
        page.click("#theme")
        becomes(page, f"{line} !== '{before}'")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.reload()
        page.wait_for_selector("body.ready")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark", "the choice is remembered"


def test_views_and_series_answer_to_the_keyboard(browser, pages):
    with opened(browser, pages["comparison"]) as page:
        linear = page.locator("#ttft .views button", has_text="Linear")
        linear.focus()
        page.keyboard.press("Enter")
        assert linear.get_attribute("aria-pressed") == "true"
        becomes(page, "document.getElementById('chart-ttft').layout.yaxis.type === 'linear'")
        series = page.locator("#ttft .legend button", has_text="prefix-cache")
        series.focus()
        page.keyboard.press("Space")
        assert series.get_attribute("aria-pressed") == "false"
        becomes(page, "document.querySelectorAll('#chart-ttft .scatterlayer .trace').length === 1")
        unnamed = "all => all.filter(e => !e.textContent && !e.ariaLabel).map(e => e.outerHTML.slice(0, 60))"
        assert page.eval_on_selector_all("button:not([hidden]), a, summary", unnamed) == []


def test_each_chart_has_its_numbers_beneath(browser, pages):
    with opened(browser, pages["comparison"]) as page:
        for figure in page.locator(".figure").all():
            figure.locator("summary").click()
            assert figure.locator("details tbody tr").count() > 0
            assert figure.locator("details table").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_experiment_leads_to_its_runs(browser, pages):
    with opened(browser, pages["experiment"]) as page:
        page.click("text=prefix-cache/rep0")
        page.wait_for_selector("body.ready")
        assert page.inner_text("h1") == "prefix-cache"


def test_a_matrix_leads_to_its_runs(browser, pages):
    with opened(browser, pages["matrix"]) as page:
        assert page.locator(".answer .chip").inner_text() == "1 of 3 pass"
        page.click("main a:has-text('steady')")
        page.wait_for_selector("body.ready")
        assert page.locator("#again").is_visible()


def test_on_paper_it_is_light_and_as_wide_as_paper(browser, pages):
    with opened(browser, pages["comparison"], color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 without margins
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        becomes(page, "document.querySelector('.plot .main-svg').style.backgroundColor === 'rgb(255, 255, 255)'")
        assert not page.locator(".bar").is_visible()
        assert page.evaluate(WIDER) == []
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") is None
        assert len(page.pdf(format="A4")) > 100_000


def test_nothing_a_server_says_runs(browser, tmp_path):
    run = sample_run(name=EVIL, model=EVIL, span_s=20.0)
    info = msgspec.structs.replace(run.info, question=EVIL, config={EVIL: EVIL}, fingerprint={EVIL: {EVIL: EVIL}})
    for record in run.records:
        record.tenant, record.reason = EVIL, EVIL
    write_run(tmp_path / "run", info, run.records, server_metrics=run.server_metrics, verdict=run.verdict)
    with opened(browser, render_report(tmp_path / "run")) as page:
        assert page.title().startswith("</script>")
        assert page.locator("main img").count() == 0
        assert EVIL in page.inner_text("h1")
        labels = page.eval_on_selector_all(".plot text", "all => all.map(t => t.textContent)")
        assert any("‹/script›" in label for label in labels)


def test_without_a_way_to_unpack_the_tables_are_open(browser, pages):
    with browser.new_context(viewport=SIZES["wide"]) as tab:
        tab.add_init_script("delete globalThis.DecompressionStream")
        page = tab.new_page()
        page.goto(pages["run"].as_uri())
        page.wait_for_selector("body.no-charts")
        assert page.locator("#ttft details").get_attribute("open") is not None
        assert not page.locator("#chart-ttft").is_visible()
