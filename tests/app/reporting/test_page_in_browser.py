"""The page in a real browser: it draws, asks for nothing, fits a phone, follows the theme, and obeys the keyboard."""

import shutil
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.page import write_page
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import fold_directory
from tests.helpers.page_stories import LEDGERS, all_failed, empty, fail, point, search, with_folds

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.needs("playwright"),
    pytest.mark.proof,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Write the page of a ledger and open it; what goes wrong in it, and what it asks for, is known at the end."""
    contexts, wrong = [], []

    def visit(ledger, viewport=DESK, **options):
        write_page(tmp_path, ledger)
        url = (tmp_path / "report.html").as_uri()
        contexts.append(context := browser.new_context(viewport=viewport, **options))
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on(
            "request", lambda request: wrong.append(request.url) if request.url.startswith(("http", "ws")) else None
        )
        page.goto(url)
        draw_all(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    # WebGL in software may say that it is slow.
    assert not [text for text in wrong if "GPU stall" not in text and "GL Driver" not in text]


def draw_all(page):
    """Bring every figure into view once, as a reader does who scrolls."""
    for plot in page.query_selector_all(".plot"):
        plot.scroll_into_view_if_needed()
        page.wait_for_function("plot => plot.querySelector('.main-svg') !== null", arg=plot)
    page.evaluate("scrollTo(0, 0)")


def rows(page):
    return page.locator("#trials tbody tr").count()


def story():
    told = search(12, objectives=["val_loss:min"])
    fail(told, told.suggest(900.0, **point(2)))
    return told.ledger


@pytest.mark.parametrize("make", [*LEDGERS, story], ids=lambda make: make.__name__)
def test_every_page_draws_without_an_error_and_fits_a_desk_and_a_phone(visit, make):
    page = visit(make())
    for viewport in (DESK, PHONE):
        page.set_viewport_size(viewport)
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")  # figures follow the window


def test_no_button_sends_a_figure_to_a_server(visit):
    titles = visit(story()).locator(".modebar-btn").evaluate_all("all => all.map(each => each.dataset.title)")
    assert "Download plot as a PNG" in titles
    assert not [title for title in titles if "hare" in title or "loud" in title]


def test_all_sections_of_a_search_are_there_and_their_links_lead_to_them(visit):
    page = visit(story())
    titles = page.locator("main h2").all_inner_texts()
    for title in ("Overview", "Best so far", "Parameters", "Parallel coordinates", "Importance", "Partial dependence"):
        assert title in titles
    for title in ("Learning curves", "Blocks", "Failures", "Trials", "Do it again"):
        assert title in titles
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1


def test_the_theme_follows_the_system_and_the_button(visit):
    def lightness(page):
        red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        return red + green + blue

    light, dark = visit(story(), color_scheme="light"), visit(story(), color_scheme="dark")
    assert lightness(light) > 600
    assert lightness(dark) < 200
    dark.get_by_role("button", name="Theme: auto").press("Enter")
    assert lightness(dark) > 600


def test_the_keyboard_alone_sorts_chooses_filters_and_shows_all_again(visit):
    page = visit(story())
    assert rows(page) == 13
    page.get_by_role("button", name="val_loss", exact=True).press("Enter")
    assert page.locator("#trials th[aria-sort=ascending]").inner_text().startswith("val_loss")
    page.get_by_role("button", name="val_loss", exact=True).press("Enter")
    assert page.locator("#trials tbody tr td").first.inner_text() == "11"
    page.locator("#trials tbody button").first.press("Enter")
    assert rows(page) == 1
    page.keyboard.press("Escape")
    assert rows(page) == 13
    page.get_by_label("Parameter to filter by").select_option(label="layers")
    page.get_by_label("from").fill("3")
    page.get_by_label("from").press("Enter")
    assert rows(page) == 7
    assert "7 trials of 13 chosen" in page.locator("#chosen").inner_text()


def test_a_choice_in_one_figure_makes_the_rest_faint_in_all(visit):
    page = visit(story())
    faint = (
        "() => Array.from(document.querySelectorAll('#parameters .point')).filter(p => p.style.opacity < 0.2).length"
    )
    assert page.evaluate(faint) == 0
    page.locator("#parallel .plot").evaluate(
        "plot => Plotly.restyle(plot, {'dimensions[0].constraintrange': [plot.data[0].dimensions[0].range]}, [0])"
    )
    assert rows(page) == 12
    page.locator("#failures tbody button").first.press("Enter")
    page.locator("#parameters .plot").first.scroll_into_view_if_needed()
    page.wait_for_function(f"({faint})() > 20")


def test_hovering_shows_the_trial_of_a_dot(visit):
    page = visit(story())
    page.locator("#progress .plot").first.scroll_into_view_if_needed()
    dot = page.locator("#progress .plot").first.locator(".point").nth(5).bounding_box()
    page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    page.wait_for_selector(".hoverlayer .hovertext")
    said = page.locator(".hovertext").first.text_content()
    assert "trial" in said
    assert "rate" in said


def test_text_of_users_is_text(visit):
    page = visit(story())
    assert page.locator("main script, main b").count() == 0
    assert "</script><script>alert(1)" in page.locator("#failures").inner_text()


@pytest.mark.parametrize("make", [empty, all_failed])
def test_a_run_without_a_result_says_so(visit, make):
    text = visit(make()).locator("#overview").inner_text()
    assert "No trial has begun" in text or "Every trial has failed" in text


def test_folds_and_staleness_have_figures(visit, tmp_path):
    folder = Path(str(fold_directory(tmp_path, 0, 0)))
    folder.mkdir(parents=True)
    (folder / "history.json").write_text('{"staleness": {"0": 5, "2": 3}}')
    page = visit(with_folds())
    assert page.locator("#folds .point").count() == 6 * 3 + 6
    assert "0.75 on average over 8 updates. From 1 of 18 folds." in page.locator("#staleness").inner_text()


def test_several_objectives_have_a_pareto_set(visit):
    told = search(0, objectives=["val_loss:min", "n_weights:min"])
    for number in range(4):
        trial = told.suggest(0.0, **point(number))
        told.finish(1.0, told.assign(0.0, trial), 0.1 * number)
        objectives = {"val_loss": 0.1 * number, "n_weights": 100.0 - number}
        told.apply(
            ev.TrialCompleted(
                time_s=1.0, trial=trial, figure_of_merit=0.1 * number, figure_of_merit_std=0.0, objectives=objectives
            )
        )
    page = visit(told.ledger)
    assert "4 trials that no other trial beats" in page.locator("#pareto").inner_text()
