"""What is told of sets of Arrow files: inspected, checked, and the other columns of their documents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from arrow_files import FORMS, ipc

from parquet_loader import ConfigError, DataError, build_index
from parquet_loader.cli.main import main
from parquet_loader.formats.arrow.decode import PLACES
from parquet_loader.insight import check, inspect
from parquet_loader.insight.records import columns_of
from parquet_loader.storage import open_storage

DOCUMENTS = [[number, number + 1][: number % 3] for number in range(300)]


def write(folder: Path, form: str = "stream", codec: str | None = None) -> Path:
    words = pa.chunked_array([pa.array([f"w{row}" for row in range(300)]).dictionary_encode()])
    meta = pa.array([{"source": f"s{row}", "row": row} for row in range(300)])
    table = pa.table({"word": words, "meta": meta, "tokens": pa.array(DOCUMENTS, pa.list_(pa.int32()))})
    folder.mkdir(exist_ok=True)
    (folder / "a.arrow").write_bytes(ipc(table, form=form, codec=codec, rows=70))
    return folder


def tokens_of(folder: Path) -> Any:
    return build_index(folder, column="tokens")


@pytest.mark.parametrize("form", FORMS)
def test_a_set_is_inspected_and_checked(tmp_path: Path, form: str) -> None:
    folder = write(tmp_path / "set", form, "lz4")
    found = inspect(folder, column="tokens")
    assert (found.documents, found.tokens, found.empty, found.row_groups) == (300, 300, 100, 5)
    assert (found.types, found.codecs) == ({"list of int32": 1}, {"LZ4": 5})
    report = check(folder, column="tokens", state=tmp_path / "state")
    assert report.ok
    assert (report.documents, report.tokens, report.min_id, report.max_id) == (300, 300, 1, 300)
    assert report.read_bytes == (folder / "a.arrow").stat().st_size


@pytest.mark.parametrize("form", FORMS)
def test_damage_that_leaves_ids_what_they_may_be_is_seen_by_the_next_check(tmp_path: Path, form: str) -> None:
    folder = write(tmp_path / "set", form)
    file = folder / "a.arrow"
    index = tokens_of(folder)
    assert check(folder, column="tokens", state=tmp_path / "state").ok
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    data = bytearray(file.read_bytes())
    place = int(index.start[2] + index.places[PLACES.index("values_offset"), 2])
    data[place] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=times)
    assert check(folder, column="tokens").ok
    [fault] = check(folder, column="tokens", state=tmp_path / "state").faults
    assert (fault.path, fault.row_group) == ("a.arrow", 2)


def test_the_command_says_what_it_cannot_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "set")
    assert main(["check", str(folder), "--column", "tokens", "--cache-dir", str(tmp_path / "cache")]) == 0
    assert "such files have no checksums" in capsys.readouterr().out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_other_columns_of_documents_are_told(tmp_path: Path, form: str, codec: str | None) -> None:
    folder = write(tmp_path / "set", form, codec)
    places = [("a.arrow", 3, 5), ("a.arrow", 0, 69), ("a.arrow", 4, 0)]
    found = columns_of(open_storage(folder), tokens_of(folder), places, ["word", "meta.source"])
    assert found == [{"word": f"w{row}", "meta.source": f"s{row}"} for row in (215, 69, 280)]
    with pytest.raises(ConfigError, match="has no column 'url'"):
        columns_of(open_storage(folder), tokens_of(folder), places, ["url"])


def test_offsets_of_another_column_that_lead_nowhere_are_one_error(tmp_path: Path) -> None:
    words = pa.array([f"word {row}" for row in range(300)])
    file = tmp_path / "a.arrow"
    data = bytearray(ipc(pa.table({"word": words, "tokens": pa.array(DOCUMENTS, pa.list_(pa.int32()))})))
    place = data.index(words.buffers()[1].to_pybytes()[:64])
    data[place + 40 : place + 44] = (2**31 - 1).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.arrow: cannot be read"):
        columns_of(open_storage(tmp_path), tokens_of(tmp_path), [("a.arrow", 0, 9)], ["word"])


def test_a_damaged_column_beside_the_tokens_is_one_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", "file", "zstd")
    file = folder / "a.arrow"
    data = bytearray(file.read_bytes())
    place = data.index(b"\x28\xb5\x2f\xfd")  # the first compressed buffer, of the words
    data[place : place + 4] = bytes(4)
    file.write_bytes(data)
    index = tokens_of(folder)
    with pytest.raises(DataError, match=r"a\.arrow: cannot be read"):
        columns_of(open_storage(folder), index, [("a.arrow", 0, 0)], ["word"])
