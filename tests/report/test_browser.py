"""The page in a real browser: no error, nothing asked of the network, nothing wider than the screen, light and dark."""

import shutil

import pytest
from made_run import make_run

from pairwright.report import write_report

pytestmark = pytest.mark.stress

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
HOSTILE = "\"'><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "support", odd=HOSTILE)
    write_report(folder, folder / "report.html", title="Support agent")
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)], ids=["phone", "desktop"])
def test_the_page_opens_without_an_error_and_fits_the_screen(browser, page_file, tmp_path, width, height, scheme):
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    picture = page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert len(picture) > 50_000
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert told == []
    assert [url for url in asked if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.title() == "Support agent · pairwright"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) > 600) == (scheme == "light")
    page.close()


def test_text_is_large_enough_to_read_on_a_phone(browser, page_file):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_file.as_uri())
    heights = page.evaluate(
        "[...document.querySelectorAll('.plot text')].map(one => one.getBoundingClientRect().height).filter(h => h)"
    )
    assert len(heights) > 50
    assert min(heights) >= 9
    page.close()


def test_plots_open_as_separate_files(browser, page_file):
    page = browser.new_page(viewport={"width": 800, "height": 600}, color_scheme="dark")
    told = []
    page.on("console", lambda message: told.append(message.text))
    page.goto((page_file.parent / "plots" / "training-loss.svg").as_uri())
    assert told == []
    stroke = page.evaluate("getComputedStyle(document.querySelector('.line')).stroke")
    assert stroke == "rgb(125, 162, 247)"
    page.close()
