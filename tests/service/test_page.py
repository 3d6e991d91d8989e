"""The job page in a real browser."""

import os
import shutil
from pathlib import Path

import pytest
from service_process import Service, plain_model, until
from service_trainer import CRASH

pytestmark = pytest.mark.stress

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as run:
        opened = run.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page that must not complain and must not ask any other host."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    opened.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "request",
        lambda asked: (
            None if "127.0.0.1" in asked.url or asked.url.startswith("data:") else complaints.append(asked.url)
        ),
    )
    yield opened
    opened.close()
    assert complaints == []


def num_points(page, title: str, *, line: int = 0) -> int:
    """Points of a line in the chart with this title; a single point is a dot."""
    chart = page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))
    paths = chart.locator("path.line")
    return paths.nth(line).get_attribute("d").count(" ") if paths.count() > line else chart.locator("circle").count()


def test_the_page_shows_jobs_curves_logs_datasets_and_deployments(tmp_path, page):
    with Service(tmp_path / "data") as service:
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        hostile = "<img src=x onerror=alert(1)>"
        dataset = {"name": "pairs", "files_url": "hf://datasets/default/pairs", "description": hostile}
        service.post("/v1/datasets", dataset)
        service.wait_for(service.job(seed=CRASH, name="unlucky"), "failed")
        service.hold()
        job = service.job(name="nightly", steps=6)
        until(lambda: service.status(job)["steps_completed"] == 3)
        page.goto(service.url)
        page.get_by_role("link", name="nightly").wait_for()
        assert page.get_by_role("heading", name="2 jobs").is_visible()
        assert page.locator("tr", has_text="unlucky").locator(".status").inner_text() == "failed"
        assert page.locator("tr", has_text="nightly").locator(".status").inner_text() == "running"
        filter_jobs(page)
        shown(page, "jobs")
        page.get_by_role("link", name="nightly").click()
        page.get_by_role("heading", name="Reward margin").wait_for()
        until(lambda: num_points(page, "Loss") == 3)
        assert [num_points(page, title) for title in ("Reward margin", "Accuracy", "Log-probability")] == [3, 3, 3]
        assert num_points(page, "Log-probability", line=1) == 3
        knobs = page.locator("details", has_text="Hyperparameters").locator("dl")
        assert "learning_rate" in knobs.inner_text()
        assert "2 rows to train on" in page.locator("#log").inner_text()
        assert page.get_by_role("button", name="Deploy").count() == 0
        shown(page, "job")
        service.release()
        until(lambda: num_points(page, "Loss") == 6)  # the curve grows by itself
        page.locator(".status.completed").first.wait_for(timeout=60_000)
        model = service.get(f"/v1/customization/jobs/{job}")["output_model"]
        page.get_by_role("button", name="Deploy").click()
        page.get_by_role("heading", name="Deployments").wait_for()
        page.locator(".status.ready").wait_for(timeout=60_000)
        assert model in page.locator("tbody").inner_text()
        shown(page, "deployments")
        page.goto(f"{service.url}/#/jobs/{job}")
        page.get_by_role("link", name="Deployed").wait_for()
        page.get_by_role("link", name="Datasets").click()
        page.get_by_text("hf://datasets/default/pairs").wait_for()
        assert (page.get_by_text(hostile).count(), page.locator("main img").count()) == (1, 0)
        page.get_by_role("link", name="Models").click()
        page.get_by_text("llama-3.2-1b-instruct@v1.0.0+A100").wait_for()
        compare_jobs(page)
        page.get_by_role("link", name="unlucky").first.click()
        page.locator(".problem").wait_for()
        assert "killed by signal 9" in page.locator(".problem").inner_text()
        page.get_by_role("link", name="API").click()
        page.get_by_text("POST /v1/customization/jobs", exact=True).wait_for()
        shown(page, "api")


def filter_jobs(page) -> None:
    """Filters by state and by name, which are part of the address, so that links keep them."""
    page.get_by_label("state").select_option("failed")
    page.get_by_role("heading", name="1 job").wait_for()
    assert page.get_by_role("link", name="nightly").count() == 0
    page.reload()
    page.get_by_role("heading", name="1 job").wait_for()
    assert "status=failed" in page.url
    page.get_by_label("state").select_option("")
    page.get_by_label("Filter by name").fill("nightly")
    page.get_by_label("Filter by name").press("Enter")
    page.get_by_role("heading", name="1 job").wait_for()
    page.get_by_role("link", name="nightly").wait_for()
    page.get_by_label("Filter by name").fill("nothing")
    page.get_by_label("Filter by name").press("Enter")
    page.get_by_text("None fits these filters.").wait_for()
    page.get_by_label("Filter by name").fill("")
    page.get_by_label("Filter by name").press("Enter")
    page.get_by_role("heading", name="2 jobs").wait_for()


def compare_jobs(page) -> None:
    page.get_by_role("link", name="Jobs").click()
    page.get_by_label("Compare nightly").check()
    page.get_by_label("unlucky").check()
    page.get_by_role("link", name="Compare both").click()
    page.get_by_role("heading", name="Two jobs").wait_for()
    chart = page.locator("figure", has=page.get_by_role("heading", name="Loss", exact=True))
    chart.wait_for()
    assert (chart.locator("path.line").count(), chart.locator("circle").count()) == (1, 1)  # six steps, and one
    changed = page.locator("tr.differs td:first-child").all_inner_texts()
    assert {"state", "seed"} <= set(changed)
    assert "batch_size" not in changed
    shown(page, "compare")


@pytest.mark.slow
def test_a_job_is_cancelled_from_the_page_and_a_token_is_asked_for(tmp_path, browser):
    with Service(tmp_path / "data") as service:
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        service.hold()
        job = service.job()
        page = browser.new_page()
        page.goto(f"{service.url}/#/jobs/{job}")
        page.get_by_role("button", name="Cancel job").click()
        page.locator(".status.cancelled").first.wait_for(timeout=60_000)
        from pairwright.service.rows.api_tokens import create_token
        from pairwright.service.rows.database import Database

        database = Database(f"sqlite:///{service.data / 'state.sqlite3'}")
        token = create_token(database, "ada", ["*"])
        database.close()
        page.locator("#token").wait_for()
        page.locator("#token").fill(token)
        page.get_by_role("button", name="Use it").click()
        page.locator("#sign-in").wait_for(state="hidden")
        page.locator("#live", has_text="live").wait_for()
        page.close()


def shown(page, name: str) -> None:
    """Keep what the page looks like, where somebody asks for it: light and dark, wide and as on a phone."""
    folder = os.environ.get("SCREENSHOTS")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than {width}"
        for scheme in ("light", "dark") if folder else ():
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=str(Path(folder) / f"{name}-{scheme}-{width}.png"), full_page=True)
