"""A run as one page of HTML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import CheckpointMismatchError, Component, ConfigError, ParquetLoader, StorageError
from parquet_loader.insight import open_run
from parquet_loader.insight.report import report, write_report
from parquet_loader.insight.report.ink import MARK_ROLES, SERIES, TEXT_ROLES
from parquet_loader.options import LoaderOptions
from parquet_loader.printable import printable
from parquet_loader.runs import MixtureRun, SetRun

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('$x_1$')</script>\x1b\x9b\u202e"
NAMES = ["arxiv", "books", "code", "forum", "law", "math", "news", "papers", "web", HOSTILE]
VOID = {"meta", "link", "br", "hr", "img", "input"}
RUN: dict[str, Any] = {"seq_len": 16, "lanes": 8, "seed": 1, "exhausted": "redistribute"}


class Page(HTMLParser):
    """The elements of a page: (name, attributes, text directly in it) of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.elements[self.open.pop()][0] != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self.open:
            self.elements[self.open[-1]][2].append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]

    def texts(self, tag: str) -> list[str]:
        return ["".join(data).strip() for name, _, data in self.elements if name == tag]

    def values(self, attribute: str) -> list[str]:
        return [found for _, attributes, _ in self.elements if (found := attributes.get(attribute)) is not None]


class Hostile:
    """A tokenizer of texts that nobody should run."""

    def decode(self, ids: list[int]) -> str:
        return f"</pre><script>alert({len(ids)})</script>"


class Mixture:
    """Ten small sources in three stages, one of which ends, and a checkpoint of a run of them."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(2)
        self.sources: dict[str, Component] = {}
        for number, name in enumerate(NAMES):
            files = [[rng.integers(1, 60, 12).tolist() for _ in range(3)] for _ in range(2)]
            path = write_set(folder / str(number), unique_groups(files))
            self.sources[name] = Component(path, max_epochs=1 if name == "math" else None, window=3)
        even = dict.fromkeys(NAMES, 1)
        self.options: dict[str, Any] = {
            **RUN,
            "weights": [(0, even), (20_000, {**even, "code": 5}), (40_000, {**even, "math": 3})],
            "cache_dir": folder / "cache",
        }
        with ParquetLoader(self.sources, **self.options) as loader:
            for _ in islice(loader, 70):
                pass
            loader.skip(5)
            self.state = loader.state_dict()

    def run(self) -> SetRun | MixtureRun:
        return open_run(self.sources, LoaderOptions(**self.options))

    def asked(self) -> dict[str, Any]:
        return {
            "tokens": 60_000,
            "world_sizes": [2, 3, 8],
            "checkpoints": {HOSTILE: self.state},
            "tokenizer": Hostile(),
        }


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    return Mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def page(mixture: Mixture) -> Page:
    return Page(report(mixture.run(), **mixture.asked()))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of one set, of which nothing more is said."""
    folder = tmp_path_factory.mktemp("alone")
    write_set(folder / "wiki", unique_groups([[[30, 40], [50]], [[60] * 20]]))
    return Page(report(open_run(folder / "wiki", LoaderOptions(seq_len=8, lanes=4, cache_dir=folder / "cache"))))


@pytest.fixture(params=["mixture", "one set"])
def each(request: pytest.FixtureRequest, page: Page, alone: Page) -> Page:
    return page if request.param == "mixture" else alone


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_element_is_closed_where_it_should_be(each: Page) -> None:
    assert each.text.startswith("<!doctype html>")
    assert (each.wrong, each.open) == ([], [])


def test_ids_are_unique_and_references_lead_to_them(each: Page) -> None:
    ids = each.values("id")
    assert len(ids) == len(set(ids))
    wanted = {link[1:] for link in each.values("href") if link.startswith("#")}
    wanted |= {*each.values("aria-labelledby"), *each.values("aria-describedby")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", each.text))
    assert len(wanted) > 10
    assert wanted <= set(ids)


def test_the_page_loads_nothing(each: Page) -> None:
    assert {name for name, _, _ in each.elements}.isdisjoint({"script", "img", "iframe", "object", "image"})
    assert [link for link in each.values("href") + each.values("src") if not link.startswith(("#", "data:,"))] == []
    assert "http" not in each.text
    assert "@import" not in each.text
    assert re.findall(r"url\((?!#)", each.text) == []


def test_a_page_of_ten_sources_is_small(page: Page) -> None:
    assert len(page.text.encode()) < 2_000_000


def test_the_same_run_gives_the_same_bytes(mixture: Mixture, page: Page) -> None:
    assert report(mixture.run(), **mixture.asked()) == page.text


def test_names_are_shown_and_never_taken_for_markup_or_formulas(page: Page) -> None:
    assert printable(HOSTILE) in page.texts("th")
    cut = HOSTILE[:11]
    assert any(text.startswith(cut) for text in page.texts("text"))
    assert HOSTILE not in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page.text)  # what turns text around


def test_a_title_is_shown_as_it_is(alone: Page, tmp_path: Path) -> None:
    assert alone.texts("h1") == ["wiki"]
    write_set(tmp_path / "set", unique_groups([[[40, 50]]]))
    titled = Page(report(open_run(tmp_path / "set", LoaderOptions(seq_len=4, lanes=1)), title="<b>Run 7</b>"))
    assert titled.texts("title")[0] == titled.texts("h1")[0] == "<b>Run 7</b>"


# ── for those who see it otherwise ───────────────────────────────────────────────────────────────────────────────────


def test_headings_come_in_order(each: Page) -> None:
    levels = [int(name[1]) for name, _, _ in each.elements if re.fullmatch(r"h\d", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_charts_have_titles_and_descriptions(each: Page) -> None:
    charts = each.all("svg")
    assert len(charts) > 3
    assert all(chart["role"] == "img" for chart in charts)
    assert all(chart["aria-labelledby"] and chart["aria-describedby"] for chart in charts)
    titles = each.texts("title")[1:]
    assert len(titles) == len(each.texts("desc")) == len(charts)
    assert all(titles)
    assert all(each.texts("desc"))


def test_tables_say_what_their_cells_are_of(each: Page) -> None:
    assert all(header.get("scope") in ("row", "col") for header in each.all("th"))
    captions = each.texts("caption")
    assert len(captions) == len(each.all("table")) > 0
    assert all(captions)


def test_the_first_link_skips_to_the_content(each: Page) -> None:
    assert each.all("a")[0]["href"] == "#content"
    assert "content" in each.values("id")


def themes() -> dict[str, dict[str, str]]:
    style = resources.files("parquet_loader.insight.report").joinpath("page.css").read_text()
    found = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{([^}]*)\}", style)]
    assert len(found) == 3
    return dict(zip(("light", "dark", "print"), found, strict=True))


def contrast(one: str, other: str) -> float:
    """By WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_what_is_written_and_drawn_stands_out(theme: str) -> None:
    colours = themes()[theme]
    for text in (*TEXT_ROLES, "link", "good"):
        for ground in ("paper", "page", "band"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in ("accent", *(f"s{number}" for number in range(SERIES))):
        assert contrast(colours[mark], colours["paper"]) >= 3, mark


def test_every_colour_is_one_of_the_themes(each: Page) -> None:
    for chart in re.findall(r"<svg.*?</svg>", each.text, re.DOTALL):
        assert re.findall(r"#[0-9a-f]{6}\b|rgb", chart) == []
    used = set(re.findall(r"var\(--(\w+)\)", each.text))
    for theme in themes().values():
        assert used <= set(theme)
        assert {*TEXT_ROLES, *MARK_ROLES, *(f"s{number}" for number in range(SERIES))} <= set(theme)


# ── what it says ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rows_of(page: Page, caption: str) -> list[list[str]]:
    """The cells of a table."""
    found: list[list[str]] = []
    inside = False
    for name, _, data in page.elements:
        text = "".join(data).strip()
        if name == "caption":
            inside = text == caption
        elif name == "tr" and inside:
            found.append([])
        elif name in ("th", "td") and inside:
            found[-1].append(text)
    return found[1:]


def test_the_table_of_sets_is_what_the_indexes_hold(mixture: Mixture, page: Page) -> None:
    run = mixture.run()
    assert isinstance(run, MixtureRun)
    *rows, total = rows_of(page, "What the files hold")
    assert [row[0] for row in rows] == [printable(name) for name in sorted(NAMES)]
    for name, (_, *numbers) in zip(sorted(NAMES), rows, strict=True):
        index = run.indexes[name]
        wanted = (len(index.files), len(index), int(index.rows.sum()), index.total_tokens)
        assert numbers[:4] == [f"{number:,}" for number in wanted]
    assert total[4] == f"{sum(index.total_tokens for index in run.indexes.values()):,}"


def test_what_sources_give_is_what_a_run_of_them_gives(mixture: Mixture, page: Page) -> None:
    """The plan is of the run that goes on from the checkpoint."""
    steps = -(-60_000 // (RUN["seq_len"] * RUN["lanes"]))
    with ParquetLoader(mixture.sources, **mixture.options) as loader:
        loader.load_state_dict(mixture.state)
        loader.skip(steps - 75)
        given = loader.stats()["sources"]
        stages = [stage["step"] for stage in loader.history["stages"]]
    rows = rows_of(page, "By the end of the run")
    assert {row[0]: row[1] for row in rows} == {printable(name): f"{of['tokens']:,}" for name, of in given.items()}
    # One that is exhausted where a stage of the schedule begins makes two of one step.
    assert [row[2] for row in rows_of(page, "Stages")] == [f"{step:,}" for step in dict.fromkeys(stages)]


def test_it_tells_when_a_source_has_given_what_it_may(page: Page) -> None:
    assert "math has given its max_epochs" in page.texts("text")


def test_a_run_that_ends_says_why(mixture: Mixture) -> None:
    run = open_run(mixture.sources, LoaderOptions(**{**mixture.options, "exhausted": "raise"}))
    lead = next(
        text for text in Page(report(run, tokens=60_000, world_sizes=[1])).texts("p") if "It ends there" in text
    )
    assert "'math' would be repeated more than max_epochs allows" in lead


def test_world_sizes_are_compared_and_one_that_is_refused_says_why(page: Page) -> None:
    rows = rows_of(page, f"By world size, for {-(-60_000 // 128) - 75:,} steps")
    assert [(row[0], row[1]) for row in rows] == [("2", "4"), ("3", "2 or 3"), ("8", "1")]
    assert "3 rankworld_size 3 does not divide lanes 8" not in page.text
    assert any("world_size 3 does not divide lanes 8" in text for text in page.texts("li"))


def test_samples_are_shown_as_they_are(page: Page, alone: Page) -> None:
    assert len(page.texts("pre")) >= len(NAMES)
    assert all(text.startswith("</pre><script>alert(") for text in page.texts("pre"))
    assert alone.texts("pre")[0].startswith("0 1 2 3 4 5")


def test_it_tells_how_far_checkpoints_are(page: Page) -> None:
    rows = rows_of(page, "How it came there")
    assert ["5 steps skipped", "70", f"{70 * 128:,}"] in rows
    assert [f"checkpoint {printable(HOSTILE)}", "75", f"{75 * 128:,}"] in rows


def test_without_checkpoints_nothing_is_said_of_the_past(alone: Page) -> None:
    assert "What was run" not in alone.texts("h2")
    assert {"The set", "The run", "Samples"} <= set(alone.texts("h2"))


def test_a_run_of_no_step_has_a_page(mixture: Mixture) -> None:
    assert Page(report(mixture.run(), tokens=0, world_sizes=[1])).wrong == []


def test_the_run_is_where_it_was(mixture: Mixture) -> None:
    run = mixture.run()
    before = run.progress
    report(run, tokens=1000, world_sizes=[1], checkpoints={"last": mixture.state})
    assert run.progress is before


def test_a_checkpoint_of_another_run_is_refused(mixture: Mixture) -> None:
    with pytest.raises(CheckpointMismatchError, match="seed is 9 in the checkpoint"):
        report(mixture.run(), checkpoints={"other": {**mixture.state, "seed": 9}})


def test_what_cannot_be_is_refused(mixture: Mixture) -> None:
    with pytest.raises(ConfigError, match="tokens must be an integer"):
        report(mixture.run(), tokens=-1)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_what_brings_it(
    mixture: Mixture, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs the package {package}: pip install '.*\[report\]'"):
        report(mixture.run())


def test_a_page_is_written_whole_or_not_at_all(mixture: Mixture, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write the report"):
        write_report(tmp_path / "absent" / "report.html", mixture.run(), tokens=1000, world_sizes=[1])
    assert list(tmp_path.iterdir()) == []


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "report"))
    import browser

    if not browser.is_installed():
        pytest.skip("needs Debian's chromium and chromium-driver")
    with browser.started() as found:
        yield found


def test_a_browser_shows_it_without_complaint_and_nothing_is_wider_than_a_phone(
    browser: Any, page: Page, tmp_path: Path
) -> None:
    (path := tmp_path / "report.html").write_text(page.text)
    for width in (1280, 390):
        browser.look(width=width)
        browser.open(path)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value("document.querySelectorAll('section').length") == len(page.all("section"))
    assert browser.console() == []
    assert browser.printed().startswith(b"%PDF")
