"""The job page in a real browser."""

import shutil
from pathlib import Path

import pytest
from service_process import Service, plain_model, until
from service_trainer import CRASH

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


def test_the_page_shows_jobs_curves_logs_datasets_and_deployments(tmp_path, page):
    with Service(tmp_path / "data") as service:
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        service.post("/v1/datasets", {"name": "pairs", "files_url": "hf://datasets/default/pairs"})
        service.wait_for(service.job(seed=CRASH, name="unlucky"), "failed")
        service.hold()
        job = service.job(name="nightly", steps=6)
        until(lambda: service.status(job)["steps_completed"] == 3)
        page.goto(service.url)
        page.get_by_role("link", name="nightly").wait_for()
        assert page.get_by_role("heading", name="2 jobs").is_visible()
        assert page.locator("tr", has_text="unlucky").locator(".state").inner_text() == "failed"
        assert page.locator("tr", has_text="nightly").locator(".state").inner_text() == "running"
        page.get_by_role("link", name="nightly").click()
        page.locator("circle.train").nth(2).wait_for()
        assert page.locator("circle.train").count() == 3
        assert "2 rows to train on" in page.locator("#log").inner_text()
        shown(page, "page-running")
        service.release()
        page.locator("circle.train").nth(5).wait_for(timeout=60_000)  # the curve grows by itself
        page.locator(".state.completed").wait_for(timeout=60_000)
        model = service.get(f"/v1/customization/jobs/{job}")["output_model"]
        service.post("/v1/deployment/configs", {"name": "c", "model": model})
        service.post("/v1/deployment/model-deployments", {"name": "shop-model", "config": "default/c"})
        page.get_by_role("link", name="Deployments").click()
        page.locator(".state.ready").wait_for(timeout=60_000)
        assert model in page.locator("tbody").inner_text()
        page.get_by_role("link", name="Datasets").click()
        page.get_by_text("hf://datasets/default/pairs").wait_for()
        page.get_by_role("link", name="Models").click()
        page.get_by_text("llama-3.2-1b-instruct@v1.0.0+A100").wait_for()
        page.get_by_role("link", name="Jobs").click()
        page.get_by_role("link", name="unlucky").click()
        page.locator(".problem").wait_for()
        assert "killed by signal 9" in page.locator(".problem").inner_text()
        page.get_by_role("link", name="API").click()
        page.get_by_text("POST /v1/customization/jobs", exact=True).wait_for()


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
        page.locator(".state.cancelled").wait_for(timeout=60_000)
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
    """Keep what the page looks like, where somebody asks for it."""
    import os

    if folder := os.environ.get("PAIRWRIGHT_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
