"""The page in a real browser: open, search, filter, step, vote; hostile text; light, dark and phone; the static copy."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from viewed_run import HOSTILE, ask_all, make_viewed_run

from pairwright.pairs.decisions import VoteFile
from pairwright.view.static_copy import export_view

pytestmark = pytest.mark.stress

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class View:
    """`pairwright view` as a process."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pairwright.cli", "view", str(folder), "--port", "0", "--no-open"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
        assert found, line + self.process.stderr.read()
        self.link = found[0]

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser):
    """Opens pages that must not complain and must not ask any other host."""
    complaints: list[str] = []
    pages = []

    def opening(width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        local = ("http://127.0.0.1", "data:", "file:")
        page.on("request", lambda asked: None if asked.url.startswith(local) else complaints.append(asked.url))
        pages.append(page)
        return page

    yield opening
    for page in pages:
        page.context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def run(tmp_path_factory, browser):
    return make_viewed_run(tmp_path_factory.mktemp("runs") / "support")


def rows(page, label: str):
    return page.get_by_role("table", name=label).locator("tbody tr:not(.note)")


def test_open_search_filter_step_through_pairs_vote_restart_and_the_votes_are_there(run, open_page):
    with View(run) as view:
        page = open_page()
        page.goto(view.link)
        rows(page, "runs").first.wait_for()
        assert "token" not in page.url
        # Experiences: search, a facet, a record.
        page.keyboard.press("g")
        page.keyboard.press("e")
        rows(page, "experiences").nth(50).wait_for()
        page.get_by_role("searchbox").fill("no rule")
        page.keyboard.press("Enter")
        page.get_by_text("1 experience of 97").wait_for()
        page.locator(".snippet mark", has_text="no rule").first.wait_for()
        rows(page, "experiences").first.click()
        page.get_by_role("link", name="turn 3: nonzero_exit").wait_for()
        assert page.locator(".turn.failed").count() == 1
        page.get_by_label("Clear the search").click()
        page.get_by_role("button", name=re.compile("^single candidate")).or_(
            page.get_by_role("button", name=re.compile("^chosen"))
        ).first.click()
        page.locator(".chips .chip", has_text="outcome =").wait_for()
        # A record and a sequence: the buttons lead to the neighbours, also without a keyboard.
        for name in ("experiences", "tokens"):
            page.goto(page.url.partition("#")[0] + f"#/{name}")
            rows(page, {"tokens": "sequences"}.get(name, name)).nth(3).wait_for()
            rows(page, {"tokens": "sequences"}.get(name, name)).first.click()
            page.get_by_text(re.compile("^1 of ")).wait_for()
            page.get_by_title("Next (j)").click()
            page.get_by_text(re.compile("^2 of ")).wait_for()
            page.get_by_title("Previous (k)").click()
            page.get_by_text(re.compile("^1 of ")).wait_for()
            assert page.get_by_title("Previous (k)").is_disabled()
        # Pairs: by keyboard, and the state is in the address.
        page.goto(page.url.partition("#")[0] + "#/pairs")
        rows(page, "pairs").nth(3).wait_for()
        page.keyboard.press("j")
        page.get_by_text(re.compile("^1 of ")).wait_for()
        page.keyboard.press("j")
        page.get_by_text(re.compile("^2 of ")).wait_for()
        page.keyboard.press("k")
        page.get_by_text(re.compile("^1 of ")).wait_for()
        assert page.locator(".side mark").count() > 0
        address = page.url
        other = page.context.new_page()
        other.goto(address)
        other.get_by_text(re.compile("^1 of ")).wait_for()
        other.close()
        # Decide.
        page.goto(page.url.partition("#")[0] + "#/decide?voter=ada")
        page.get_by_text(re.compile("^0 of .* decided by ada")).wait_for()
        page.keyboard.press("a")
        page.get_by_text(re.compile("^1 of .* decided by ada")).wait_for()
        page.keyboard.press("t")
        page.get_by_text(re.compile("^2 of .* decided by ada")).wait_for()
        page.keyboard.press("u")
        page.get_by_text(re.compile("^1 of .* decided by ada")).wait_for()
        page.keyboard.press("b")
        page.get_by_text(re.compile("^2 of .* decided by ada")).wait_for()
        page.close()
    assert [vote.verdict for vote in VoteFile(run / "votes.csv").votes()] == ["a", "b"]
    with View(run) as view:
        page = open_page()
        page.goto(view.link + "#/decide?voter=ada")
        page.get_by_text(re.compile("^2 of .* decided by ada")).wait_for()
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_fits_the_screen_in_light_and_dark(run, open_page, width, scheme):
    with View(run) as view:
        page = open_page(width, scheme)
        page.goto(view.link)
        rows(page, "runs").first.wait_for()
        start = page.url.partition("#")[0]
        for address, ready in (
            ("#/runs/support", ".figure"),
            ("#/experiences", "tbody tr"),
            ("#/experiences?by=task", "tbody tr"),
            ("#/pairs?at=0", ".sides mark"),
            ("#/tokens?row=0", ".tokens mark"),
            ("#/evaluation?task=held+out+3", ".sides"),
            ("#/decide?voter=ada", ".sides"),
            ("#/decide?mode=rate&voter=ada", ".turn"),
        ):
            page.goto(start + address)
            page.locator(ready).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keyboard help").wait_for()
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 600) == (scheme == "light")
        page.close()


@pytest.mark.slow
def test_facets_are_folded_on_a_phone_and_filter_there(run, open_page):
    with View(run) as view:
        page = open_page(width=390)
        page.goto(view.link)
        page.goto(page.url.partition("#")[0] + "#/experiences")
        rows(page, "experiences").nth(5).wait_for()
        facet = page.get_by_role("button", name=re.compile(r"^duplicate pair"))
        assert not facet.is_visible()
        page.get_by_role("button", name=re.compile("Facets")).click()
        facet.click()
        page.locator(".chips .chip", has_text="outcome =").wait_for()
        page.get_by_role("button", name="Facets (1 condition)").click()
        assert not facet.is_visible()
        page.close()


def test_runs_are_rated_in_an_order_of_choice(run, open_page):
    with View(run) as view:
        page = open_page()
        page.goto(view.link)
        page.goto(page.url.partition("#")[0] + "#/decide?mode=rate&voter=eve")
        page.get_by_text(re.compile("^0 of .* rated by eve")).wait_for()
        page.get_by_label("Order of the queue").select_option("gap")
        page.wait_for_url(re.compile("order=gap"))
        page.locator(".detail .turn").first.wait_for()
        page.get_by_label("Rating").get_by_role("button", name="4").click()
        page.get_by_text(re.compile("^1 of .* rated by eve")).wait_for()
        page.close()


# Opens a link as early as possible: the page has drawn once, and the effects of that drawing have not run yet.
OPEN_AT_ONCE = """
new MutationObserver((_, observer) => {
  if (!document.getElementById("app")?.childElementCount) return;
  observer.disconnect();
  location.hash = "LINK";
}).observe(document, { childList: true, subtree: true });
"""


@pytest.mark.parametrize(
    ("link", "shown"),
    [("#/experiences?q=no+rule", "1 experience of 97"), ("#/decide?mode=rate&voter=ida", "0 of 97 rated by ida")],
)
def test_a_link_opened_right_after_the_first_drawing_is_shown(link, shown, run, open_page):
    with View(run) as view:
        page = open_page()
        page.add_init_script(OPEN_AT_ONCE.replace("LINK", link))
        page.goto(view.link)
        page.get_by_text(shown).wait_for()
        page.close()


def test_links_opened_before_the_first_answers_are_shown(run, open_page):
    with View(run) as view:
        page = open_page()
        held = []
        page.route(re.compile("/api/(library|pairs.rows)"), lambda route: held.append(route))
        with page.expect_request("**/api/library"):
            page.goto(view.link)
        start = page.url.partition("#")[0]
        page.goto(start + "#/experiences?q=no+rule")
        with page.expect_request("**/api/pairs.rows*"):
            page.goto(start + "#/pairs")
            held.pop().continue_()
        # the question of this view is given up unanswered, and asked again when the view is opened again
        page.goto(start + "#/decide?mode=rate&voter=ida")
        page.get_by_text("0 of 97 rated by ida").wait_for()
        page.unroute_all(behavior="ignoreErrors")
        page.go_back()
        rows(page, "pairs").first.wait_for()
        page.close()


def test_a_record_with_a_script_in_every_field_does_nothing(tmp_path, browser, open_page):
    run = make_viewed_run(tmp_path / "hostile", odd=HOSTILE)
    with View(run) as view:
        page = open_page()
        page.goto(view.link)
        rows(page, "runs").first.wait_for()
        start = page.url.partition("#")[0]
        for address, ready in (
            ("#/runs/hostile", ".figure"),
            ("#/experiences?sort=-num_errors", "tbody tr"),
            ("#/experiences?by=task", "tbody tr"),
            ("#/pairs?at=0", ".sides mark"),
            ("#/tokens?row=0", ".tokens mark"),
            ("#/evaluation", "tbody tr"),
            ("#/decide?voter=ada", ".sides"),
        ):
            page.goto(start + address)
            page.locator(ready).first.wait_for()
            if address.startswith(("#/experiences?sort", "#/evaluation")):
                page.keyboard.press("j")
                page.locator(".detail .turn").first.wait_for()
                page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true })")
            assert "owned" not in page.title()
            assert page.locator("#app img, #app script").count() == 0
        assert page.locator("body").inner_text().count("<script>") > 0
        page.close()
    exported = export_view(ask_all(run), tmp_path / "copy", limit=30)
    page = open_page()
    page.goto(exported.page.as_uri() + "#/pairs?at=0")
    page.locator(".sides mark").first.wait_for()
    assert "owned" not in page.title()
    page.close()


def test_a_copy_opens_from_the_disk_and_holds_its_selection(run, tmp_path, open_page):
    exported = export_view(ask_all(run), tmp_path / "copy", where="gap > 0.5", limit=8)
    assert exported.rows["support/experience"] == (8, 97)
    assert "support/experience" in exported.whole
    assert exported.rows["support/pairs"][0] <= 8
    page = open_page()
    page.goto(exported.page.as_uri())
    rows(page, "runs").first.click()
    page.locator(".figure").first.wait_for()
    page.get_by_role("link", name="Pairs", exact=True).click()
    rows(page, "pairs").nth(1).wait_for()  # a key that is pressed before the list is there does nothing
    page.keyboard.press("j")
    page.get_by_text(re.compile("^1 of ")).wait_for()
    page.keyboard.press("j")
    page.get_by_text(re.compile("^2 of ")).wait_for()
    page.get_by_role("link", name="Experiences").click()
    rows(page, "experiences").nth(7).wait_for()
    rows(page, "experiences").nth(7).click()
    page.locator(".detail .turn").first.wait_for()
    assert page.get_by_role("link", name="Decide").count() == 0
    page.close()
