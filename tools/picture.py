"""Pictures of pages, as small PNG files.

    python -m tools.picture runs/tools/report.html docs/assets/report.png    a report (`make picture`)
    python -m tools.picture runs/first docs/assets/pair.png --tab pair       a page of `pairwright view`
    python -m tools.picture runs/tools /tmp/pictures                         report and view of a run, light and dark,
                                                                             1280 and 390 pixels wide

Needs Chromium: set `CHROMIUM` to its path; otherwise `chromium` or that of Playwright is used.
"""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

MAX_BYTES = 200_000
# Pages of the view: the tab, and the element to click
PAGES = {
    "runs": ("runs", ""),
    "experiences": ("experiences", ""),
    "experience": ("experiences", "tbody tr"),
    "pairs": ("pairs", ""),
    "pair": ("pairs", "tbody tr"),
    "tokens": ("tokens", "tbody tr"),
    "evaluation": ("evaluation", ""),
}


@contextmanager
def open_browser() -> Iterator[Browser]:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def write_picture(page: Page, output: Path) -> int:
    """Write a screenshot with a palette of 64 colours; returns its size in bytes."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(64, method=Image.Quantize.MEDIANCUT)
    output.parent.mkdir(parents=True, exist_ok=True)
    picture.save(output, optimize=True)
    excess = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    print(f"{output}: {output.stat().st_size:,} bytes{f', the page is {excess} pixels too wide' if excess > 0 else ''}")
    return output.stat().st_size


@contextmanager
def serve_view(run: Path) -> Iterator[str]:
    """Run `pairwright view` of a run in a process; yields its link."""
    command = [sys.executable, "-m", "pairwright", "view", str(run), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield next(word for word in process.stderr.readline().split() if word.startswith("http"))
        finally:
            process.send_signal(signal.SIGINT)


def show_tab(page: Page, link: str, name: str) -> None:
    """Open a page of the view, and wait until it is rendered."""
    tab, clicked = PAGES[name]
    page.goto(link, wait_until="networkidle")
    page.goto(f"{page.url.partition('#')[0]}#/{tab}")
    page.wait_for_load_state("networkidle")
    if clicked:
        page.locator(clicked).first.click()
    page.wait_for_timeout(300)  # the progress bar of a request appears with a delay
    page.wait_for_selector(".busy", state="detached")


def take_gallery(browser: Browser, run: Path, folder: Path) -> None:
    """Write pictures of the report of a run and of the pages of its view."""
    with serve_view(run) as link:
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": 844},
                    color_scheme="dark" if scheme == "dark" else "light",
                )
                page = context.new_page()
                page.goto((run / "report.html").resolve().as_uri())
                write_picture(page, folder / f"report-{width}-{scheme}.png")
                for name in PAGES:
                    show_tab(page, link, name)
                    write_picture(page, folder / f"{name}-{width}-{scheme}.png")
                context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="a page such as RUN/report.html, or a run for all of its pages")
    parser.add_argument("output", type=Path, help="PNG file to write; for a run a folder")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--anchor", help="the part of the page to show")
    parser.add_argument("--tab", choices=PAGES, help="the page of the view of a run")
    parser.add_argument("--dark", action="store_true")
    words = parser.parse_args()
    with open_browser() as browser:
        if words.page.is_dir() and not words.tab:
            take_gallery(browser, words.page, words.output)
            return 0
        viewport = {"width": words.width, "height": words.height}
        page = browser.new_page(viewport=viewport, color_scheme="dark" if words.dark else "light")
        if words.tab:
            with serve_view(words.page) as link:
                show_tab(page, link, words.tab)
                size = write_picture(page, words.output)
        else:
            page.goto(words.page.resolve().as_uri() + (f"#{words.anchor}" if words.anchor else ""))
            size = write_picture(page, words.output)
    if size > MAX_BYTES:
        print(f"more than {MAX_BYTES:,} bytes: make it smaller with --width and --height", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
