"""Page checksums of the columns beside the tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader.insight import beside, check
from parquet_loader.insight.beside import damaged_pages
from parquet_loader.storage.opening import open_storage


def written(folder: Path, **options: object) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(3)
    words = ["".join(map(chr, rng.integers(97, 123, 30))) for _ in range(3000)]
    table = pa.table(
        {
            "url": words,
            "tokens": [rng.integers(0, 900, 5).tolist() for _ in words],
            "meta": [{"score": float(number), "tags": [word]} for number, word in enumerate(words)],
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=1000, data_page_size=4096, **options)
    return folder / "a.parquet"


def others(path: Path) -> list[tuple[int, int, str]]:
    """(Start, end, name) of the column chunks beside the tokens."""
    metadata = pq.read_metadata(path)
    columns = [
        metadata.row_group(group).column(number)
        for group in range(metadata.num_row_groups)
        for number in range(metadata.num_columns)
    ]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return [
        (start, start + column.total_compressed_size, column.path_in_schema)
        for start, column in zip(starts, columns, strict=True)
        if not column.path_in_schema.startswith("tokens")
    ]


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def damaged(path: Path) -> list[str]:
    storage = open_storage(str(path.parent))
    (file,) = storage.list_files()
    return [str(error) for error in damaged_pages(storage, file, ((0, file.size),))]


@pytest.mark.parametrize("piece_bytes", [8 << 20, 3000])  # which hold a chunk, and less than a page
@pytest.mark.parametrize(
    "options", [{}, {"compression": "zstd", "data_page_version": "2.0"}, {"use_dictionary": False}]
)
def test_sound_pages_are_sound(
    tmp_path: Path, options: dict, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(beside, "_HEAD_BYTES", 1000)
    assert damaged(written(tmp_path / "set", write_page_checksum=True, **options)) == []


@pytest.mark.parametrize("piece_bytes", [8 << 20, 3000])
def test_a_bit_that_flipped_in_another_column_is_found(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "set", write_page_checksum=True)
    monkeypatch.setattr(beside, "_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(beside, "_HEAD_BYTES", 1000)
    whole, rng = path.read_bytes(), np.random.default_rng(5)
    for start, end, name in others(path)[:6]:
        flipped(path, int(rng.integers(start + 200, end)))  # beyond the first header
        (told,) = damaged(path)
        assert f"column {name!r}" in told
        path.write_bytes(whole)


def test_a_file_without_checksums_has_none_to_verify(tmp_path: Path) -> None:
    path = written(tmp_path / "set")
    flipped(path, others(path)[0][1] - 20)
    assert damaged(path) == []


def test_a_check_tells_of_them(tmp_path: Path) -> None:
    path = written(tmp_path / "set", write_page_checksum=True)
    assert check(path.parent, cache_dir=tmp_path / "cache").faults == ()
    for start, end, _ in others(path)[:2]:
        flipped(path, (start + end) // 2)
    (fault,) = check(path.parent, cache_dir=tmp_path / "another").faults
    assert "does not match its checksum" in fault.problem
    assert fault.problem.startswith("column 'url': page ")
    assert "1 more column chunks beside the tokens have damaged pages" in fault.problem
