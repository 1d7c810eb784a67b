"""Raw files that are named, outright or by a glob: what lies beside them tells of them, as it does in a folder."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from raw_sets import write_megatron, write_shards

from parquet_loader import ConfigError, DataError, DatasetIndex, ParquetLoader, PathNotFoundError, build_index

EOS = 0
FILES = [[[1, 2, 3], [4]], [[5] * 20, [6]], [[7, 8]]]
OPTIONS: dict[str, Any] = {"seq_len": 4, "lanes": 2, "vocab_size": 300, "shuffle": False, "epochs": 1}

Place = Callable[[Path], str]


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest) -> Place:
    """Gives the address of a folder: its own, or that of a copy elsewhere."""
    if request.param == "disk":
        return str

    def copied(folder: Path) -> str:
        url = f"memory://{uuid.uuid4().hex}"
        fsspec.filesystem("memory").put(f"{folder}/", f"/{url.removeprefix('memory://')}/", recursive=True)
        return url

    return copied


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "m", FILES, eos_id=EOS)


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    (tmp_path / "f").mkdir()
    for number, documents in enumerate(FILES):
        write_megatron(tmp_path / "f" / f"{number}_text_document", [[each] for each in documents], dtype="int32")
    return tmp_path / "f"


def what_it_is(index: DatasetIndex) -> tuple[Any, ...]:
    return index.layouts, [file.path for file in index.files], index.tokens.tolist(), index.rows.tolist()


@pytest.mark.parametrize("names", ["chunk_*.bin", "*", ["chunk_000000.bin", "chunk_000001.bin", "chunk_000002.bin"]])
def test_a_meta_json_beside_files_that_are_named_tells_of_them(
    shards: Path, place: Place, names: str | list[str]
) -> None:
    meta = json.loads((shards / "meta.json").read_text())[::-1]
    (shards / "meta.json").write_text(json.dumps(meta))
    url = place(shards)
    source = f"{url}/{names}" if isinstance(names, str) else [f"{url}/{name}" for name in names]
    folder = build_index(url)
    assert what_it_is(build_index(source)) == what_it_is(folder)
    assert folder.files[0].path == "chunk_000002.bin"
    assert what_it_is(build_index(source, raw_dtype="uint16")) == what_it_is(folder)
    with pytest.raises(ConfigError, match=r"known to hold ids of uint16, and not of uint32: leave out raw_dtype"):
        build_index(source, raw_dtype="uint32")


def test_those_of_its_files_that_are_named_are_the_set(shards: Path, place: Place) -> None:
    url = place(shards)
    assert [file.path for file in build_index(f"{url}/chunk_*[12].bin").files] == [
        "chunk_000001.bin",
        "chunk_000002.bin",
        "meta.json",
    ]


@pytest.mark.parametrize("suffix", [".bin", ".idx", ""])
@pytest.mark.parametrize("raw_dtype", [None, "int32"])
def test_megatrons_files_go_by_any_of_their_names(
    megatron: Path, place: Place, suffix: str, raw_dtype: str | None
) -> None:
    url = place(megatron)
    folder = build_index(url)
    named = [f"{url}/{number}_text_document{suffix}" for number in range(len(FILES))]
    assert what_it_is(build_index(named, raw_dtype=raw_dtype)) == what_it_is(folder)
    one = build_index(named[1], raw_dtype=raw_dtype)
    assert one.documents == len(FILES[1])
    with pytest.raises(ConfigError, match="known to hold ids of int32, and not of uint16"):
        build_index(named, raw_dtype="uint16")


@pytest.mark.parametrize("pattern", ["*.bin", "*.idx"])
def test_globs_of_megatrons_files_have_both_of_each(megatron: Path, place: Place, pattern: str) -> None:
    url = place(megatron)
    assert what_it_is(build_index(f"{url}/{pattern}")) == what_it_is(build_index(url))


def test_files_that_a_meta_json_does_not_name_are_read_where_they_are_named(shards: Path, place: Place) -> None:
    np.arange(1, 9, dtype="<u4").tofile(shards / "other.bin")
    url = place(shards)
    with pytest.raises(ConfigError, match=r"other\.bin does not say .*, and no meta\.json beside it does"):
        build_index(f"{url}/other.bin")
    index = build_index(f"{url}/other.bin", raw_dtype="uint32")
    assert [file.path for file in index.files] == ["other.bin"]
    assert index.total_tokens == 8


def test_something_else_under_the_name_of_meta_json_says_nothing_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    np.arange(1, 9, dtype="<u2").tofile(tmp_path / "train.bin")
    (tmp_path / "meta.json").write_text('{"itos": ["a", "b"], "vocab_size": 2}')
    assert build_index(tmp_path / "train.bin", raw_dtype="uint16").total_tokens == 8
    (tmp_path / "meta.json").write_text('[{"file": "train.bin", "dty')
    with pytest.raises(DataError, match=r"meta\.json: cannot be read"):
        build_index(tmp_path / "train.bin", raw_dtype="uint16")


def test_a_meta_json_that_is_named_without_its_files_is_refused_with_what_to_name(shards: Path, place: Place) -> None:
    url = place(shards)
    with pytest.raises(PathNotFoundError, match="name the folder") as caught:
        build_index(f"{url}/meta.json")
    assert build_index(str(caught.value).split("name the folder ")[1]).total_tokens


@pytest.mark.parametrize("pattern", ["chunk_*[02].bin", "*_text_document.bin", "r.u16"])
def test_a_copy_of_files_that_are_named_is_read_by_their_index(tmp_path: Path, pattern: str) -> None:
    folder = write_shards(tmp_path / "m", FILES, eos_id=EOS)
    write_megatron(folder / "0_text_document", [[each] for each in FILES[1]])
    np.arange(1, 99, dtype="<u2").tofile(folder / "r.u16")
    index = build_index(f"{folder}/{pattern}", raw_dtype="uint16")
    index.save(tmp_path / "saved")
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    found = []
    for place in (folder, tmp_path / "copy"):
        with ParquetLoader(f"{place}/{pattern}", **OPTIONS, eos_id=EOS, index=tmp_path / "saved") as loader:
            found.append([batch.tokens.tolist() for batch in loader])
    assert found[0] == found[1]
    assert found[0]


def test_a_raw_file_may_be_called_anything_where_its_type_is_given(tmp_path: Path) -> None:
    np.arange(1, 9, dtype="<u2").tofile(tmp_path / "r.u16")
    assert build_index(tmp_path / "r.u16", raw_dtype="uint16").format == "raw"


class _Denying(http.server.SimpleHTTPRequestHandler):
    """A web server that knows what is there, and denies everything else."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        super().send_error(403 if code == 404 else code, message, explain)

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Denying, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_denies_what_is_not_there_has_nothing_beside(web: str, shards: Path) -> None:
    with pytest.raises(ConfigError, match="known to hold ids of uint16"):
        build_index(f"{web}/m/chunk_000001.bin", raw_dtype="uint32")
    (shards / "meta.json").unlink()
    assert build_index(f"{web}/m/chunk_000001.bin", raw_dtype="uint16").is_stream
