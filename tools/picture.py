"""`make picture`: the picture of the README, a screenshot of a run's report as a small PNG.

    python -m tools.picture runs/tools/report.html docs/assets/report.png

Needs Chromium: `CHROMIUM` names it, else `chromium` or Playwright's own is taken.
"""

import argparse
import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

MAX_BYTES = 200_000


def take_picture(page: Path, output: Path, *, width: int, height: int, anchor: str | None, dark: bool = False) -> int:
    """Write a screenshot of an HTML page, with a palette of 64 colours, and give its size in bytes."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            view = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            view.goto(page.resolve().as_uri() + (f"#{anchor}" if anchor else ""))
            shot = view.screenshot()
        finally:
            browser.close()
    picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(64, method=Image.Quantize.MEDIANCUT)
    output.parent.mkdir(parents=True, exist_ok=True)
    picture.save(output, optimize=True)
    return output.stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="a page of HTML, such as RUN/report.html")
    parser.add_argument("output", type=Path, help="PNG file to write")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--anchor", help="the part of the page to show")
    parser.add_argument("--dark", action="store_true")
    words = parser.parse_args()
    size = take_picture(
        words.page, words.output, width=words.width, height=words.height, anchor=words.anchor, dark=words.dark
    )
    print(f"{words.output}: {size:,} bytes")
    if size > MAX_BYTES:
        print(f"more than {MAX_BYTES:,} bytes: make it smaller with --width and --height", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
