"""Runs that are written down as TOML."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ConfigError, ParquetLoader, PathNotFoundError
from parquet_loader.runfile import read_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(tmp_path / "web", unique_groups([[[3, 4], [5]], [[6] * 20]]))
    write_set(tmp_path / "code", unique_groups([[[9] * 20], [[8] * 20]]))
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_loader_of_a_file_is_the_loader_of_its_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, 'source = "web"\nseq_len = 8\nlanes = 2\nseed = 7\ndtype = "int64"\n')
    monkeypatch.chdir("/")  # paths are relative to the file, from wherever it is read
    with (
        ParquetLoader.from_toml(path) as found,
        ParquetLoader(folder / "web", seq_len=8, lanes=2, seed=7, dtype="int64") as wanted,
    ):
        for one, other in zip(found, wanted, strict=True):
            assert one.tokens.dtype == np.int64
            assert np.array_equal(one.tokens, other.tokens)


def test_what_is_given_beside_the_file_counts_more(folder: Path) -> None:
    path = written(folder, 'source = "web"\nseq_len = 8\nlanes = 2\n')
    with ParquetLoader.from_toml(path, rank=1, world_size=2, seq_len=4, source=folder / "code") as loader:
        assert next(iter(loader)).tokens.shape == (1, 4)
        assert loader.index.total_tokens == 340


MIXTURE = """
seq_len = 4
lanes = 2
eos_id = 9
weights = [[0, { web = 0.75, code = 0.25 }], [100_000, { web = 0.5, code = 0.5 }]]
[source]
web = "web"
code = { source = "code", max_epochs = 4, eos_id = "none" }
"""


def test_a_mixture_has_a_table_of_sources_and_a_schedule(folder: Path) -> None:
    source, options = read_run(written(folder, MIXTURE))
    assert isinstance(source, dict)
    assert source["web"] == str(folder / "web")
    assert (source["code"].max_epochs, source["code"].eos_id) == (4, None)
    with ParquetLoader.from_toml(folder / "run.toml") as loader:
        assert loader.sources == ("code", "web")
        batches = [next(iter(loader)) for _ in range(64)]
    assert np.mean([batch.sources for batch in batches]) == 0.75
    assert options["weights"][1][0] == 100_000


def test_lists_and_urls_are_taken_as_they_are(folder: Path) -> None:
    source, _ = read_run(written(folder, 'source = ["web", "/data/x", "s3://bucket/set", "file:///y"]'))
    assert source == [str(folder / "web"), "/data/x", "s3://bucket/set", "file:///y"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seq_len = 8", "has no source"),
        ("source = 8", "a path or a URL, or a list of them, not 8"),
        ("source = [", "is no TOML"),
        ('source = "web"\nseqlen = 8', "'seqlen' is no option; did you mean 'seq_len'"),
        ('source = "web"\nzzz = 8', "'zzz' is no option; there are seq_len, lanes"),
        ("[source]\nweb = { max_epochs = 1 }", "source 'web' has no source"),
        ('[source]\nweb = { source = "web", epochs = 1 }', "source 'web': 'epochs' is no option; did you mean"),
        ('source = "web"\nseq_len = "8"\nlanes = 1', "seq_len must be an integer"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ParquetLoader.from_toml(written(folder, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match=r"there is no .*absent\.toml"):
        ParquetLoader.from_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('source = "web"\nseq_len = 8\nlanes = 2\ntail = "x"\n', "tail must be 'pad' or 'drop'"),
        ('source = "web"\nseq_len = 8.5\nlanes = 2\n', "seq_len must be an integer"),
        ('source = "web"\nseq_len = 8\nlanes = 2\nweights = { web = 1 }\n', "weights is for several sources"),
        (
            'seq_len = 8\nlanes = 2\n[source]\nweb = { source = "web", eos_id = -1 }\n',
            "source 'web': eos_id must be an integer",
        ),
    ],
)
def test_the_file_is_named_where_one_of_its_values_is_wrong(folder: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"run.toml(: |, ){says}"):
        ParquetLoader.from_toml(written(folder, text))


def test_the_file_is_not_named_for_what_was_given_beside_it(folder: Path) -> None:
    path = written(folder, 'source = "web"\nseq_len = 8\nlanes = 2\ntail = "pad"\n')
    with pytest.raises(ConfigError, match=r"^tail must be 'pad' or 'drop'"):
        ParquetLoader.from_toml(path, tail="x")


@pytest.mark.parametrize(
    ("encoding", "says"), [("utf-16", "it looks like UTF-16"), ("latin-1", "can't decode byte 0xfc")]
)
def test_what_is_not_utf_8_is_to_be_saved_as_it(folder: Path, encoding: str, says: str) -> None:
    text = 'source = "bücher"\nseq_len = 8\nlanes = 2\n'
    path = folder / "run.toml"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(ConfigError, match=rf"is no TOML, which is UTF-8 \(.*{says}.*\): save it as UTF-8"):
        read_run(path)
    path.write_bytes(text.encode("utf-8-sig"))  # its mark is taken
    assert read_run(path)[0] == str(folder / "bücher")


def test_whole_floats_are_integers_where_these_are_meant(folder: Path) -> None:
    path = written(
        folder,
        "seq_len = 8e0\nlanes = 2\nretry_seconds = 5e0\nweights = [[0, { web = 1.0 }], [5e5, { web = 2 }]]\n"
        '[source]\nweb = { source = "web", max_epochs = 1e3 }\n',
    )
    source, options = read_run(path)
    assert isinstance(source, dict)
    found = [options["seq_len"], options["weights"][1][0], source["web"].max_epochs]
    assert found == [8, 500_000, 1000]
    assert {type(each) for each in found} == {int}
    assert type(options["retry_seconds"]) is float
    with ParquetLoader.from_toml(path) as loader:
        next(iter(loader))


def test_paths_are_shown_without_steps_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "runs").mkdir()
    path = folder / "runs" / "a.toml"
    path.write_text('source = "../web"\nindex = "../web.index"\n')
    monkeypatch.setenv("HOME", str(folder))
    found = read_run("~/runs/a.toml")
    assert found == (str(folder / "web"), {"index": str(folder / "web.index")})
