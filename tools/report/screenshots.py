"""Looks at a report in Chromium: pictures at phone and desktop width, light and dark, and as it is printed.

    python tools/report/screenshots.py REPORT.html --output FOLDER

Tells what the console said, how long the page took to open, and whether it must be scrolled sideways. Needs Debian's
chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from browser import Browser, started

LOOKS: dict[str, Any] = {
    "desktop-light": {"width": 1280},
    "desktop-dark": {"width": 1280, "dark": True},
    "phone-light": {"width": 390},
    "phone-dark": {"width": 390, "dark": True},
}


def main() -> int:
    """Returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with started() as browser:
        return max([_looked(browser, given.report, given.output, name) for name in LOOKS])


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


if __name__ == "__main__":
    sys.exit(main())
