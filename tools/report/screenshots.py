"""Looks at a report in Chromium: pictures at phone and desktop width, light and dark, and as it is printed.

    python tools/report/screenshots.py REPORT.html --output FOLDER [--write-docs]

Tells what the console said, how long the page took to open, and whether it must be scrolled sideways. Needs Debian's
chromium and chromium-driver. With --write-docs the pictures of docs/images are made anew.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

from browser import Browser, started
from PIL import Image

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LOOKS: dict[str, Any] = {
    "desktop-light": {"width": 1280},
    "desktop-dark": {"width": 1280, "dark": True},
    "phone-light": {"width": 390},
    "phone-dark": {"width": 390, "dark": True},
}

# Of each picture of docs/images how it is looked at, and the elements from whose top to whose end.
PICTURES = {
    "sets": ("desktop-light", "header", "#sets .charts"),
    "mixture": ("desktop-dark", "#mixture", "#mixture .charts"),
    "windows": ("desktop-light", "#windows", "#windows .charts"),
    "phone": ("phone-dark", "#past", "#past .bars"),
}


def main() -> int:
    """Returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--write-docs", action="store_true")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with started() as browser:
        status = max([_looked(browser, given.report, given.output, name) for name in LOOKS])
        if given.write_docs:
            for name, (look, first, last) in PICTURES.items():
                browser.look(**LOOKS[look])
                browser.open(given.report)
                _write(browser, IMAGES / f"report-{name}.png", first, last)
    return status


def _looked(browser: Browser, report: Path, output: Path, name: str) -> int:
    look = LOOKS[name]
    browser.look(**look)
    browser.open(report)
    (output / f"{name}.png").write_bytes(browser.picture())
    if name == "desktop-light":
        (output / "printed.pdf").write_bytes(browser.printed())
    wide = browser.value("document.documentElement.scrollWidth")
    seconds = browser.value("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000")
    console = browser.console()
    print(f"{name}: opened in {seconds:.2f} s, {wide} pixels wide, console: {console or 'silent'}")
    return int(bool(console) or wide > look["width"])


def _write(browser: Browser, path: Path, first: str, last: str) -> None:
    """Few colours are enough, and take a third of the bytes."""
    top = browser.value(f"document.querySelector('{first}').getBoundingClientRect().top + scrollY")
    end = browser.value(f"document.querySelector('{last}').getBoundingClientRect().bottom + scrollY")
    picture = Image.open(io.BytesIO(browser.picture(top=max(0, top - 12), height=end - top + 12)))
    picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"wrote {path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
