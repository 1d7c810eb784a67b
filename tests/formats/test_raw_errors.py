"""What is wrong with raw files: one clear error for each, and never a wrong token."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_sets import write_llm_c, write_megatron, write_shards

from parquet_loader import (
    ConfigError,
    DataError,
    DatasetIndex,
    FileChangedError,
    ParquetLoader,
    ParquetLoaderError,
    PathNotFoundError,
    build_index,
)
from parquet_loader.formats.base import ENTRY_ARRAYS
from parquet_loader.insight import check, inspect

EOS = 0
VOCAB_SIZE = 300
FILES = [[[1, 2, 3], [299]], [[4] * 20, [5]]]
OPTIONS: dict[str, Any] = {"seq_len": 4, "lanes": 2, "vocab_size": VOCAB_SIZE, "eos_id": EOS, "budget_bytes": 64 << 20}


def shards(folder: Path) -> None:
    write_shards(folder, FILES, eos_id=EOS)


def megatron(folder: Path) -> None:
    folder.mkdir()
    for number, documents in enumerate(FILES):
        write_megatron(folder / f"{number}", [[document[:1], document[1:]] for document in documents])


def llm_c(folder: Path) -> None:
    folder.mkdir()
    write_llm_c(folder / "train.bin", [1, 2, 0, 4])


def npy(folder: Path) -> None:
    folder.mkdir()
    np.save(folder / "a.npy", np.array([1, 2, 0, 299], "<u2"))


def set_meta(folder: Path, entry: int = 0, **values: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta[entry] |= values
    (folder / "meta.json").write_text(json.dumps(meta))


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def pack_at(path: Path, at: int, kind: str, value: int) -> None:
    raw = bytearray(path.read_bytes())
    struct.pack_into(kind, raw, at % len(raw), value)
    path.write_bytes(raw)


HEAD = 34  # of an index; 4 lengths of 4 bytes follow, 4 pointers of 8, 3 entries of 8

CASES: list[tuple[Callable[[Path], None], Callable[[Path], object], type[ParquetLoaderError], str]] = [
    # shards
    (
        shards,
        lambda to: cut(to / "chunk_000001.bin", 1),
        DataError,
        r"chunk_000001\.bin: .* not a whole number of 2-byte",
    ),
    (
        shards,
        lambda to: cut(to / "chunk_000001.bin", 2),
        DataError,
        r"chunk_000001\.bin: .*22 ids .* meta\.json says 23",
    ),
    (
        shards,
        lambda to: (to / "chunk_000001.bin").unlink(),
        PathNotFoundError,
        "names 'chunk_000001.bin', which is not there: fetch it",
    ),
    (shards, lambda to: set_meta(to, dtype="float32"), ConfigError, "ids of float32 and .* of uint16"),
    (
        shards,
        lambda to: [set_meta(to, at, dtype="complex") for at in (0, 1)],
        DataError,
        "'complex' by meta.json, which",
    ),
    (
        shards,
        lambda to: set_meta(to, dtype="uint32"),
        ConfigError,
        "'chunk_000000.bin' holds ids of uint32 and 'chunk_",
    ),
    (shards, lambda to: set_meta(to, tokens=1 << 200), DataError, "where meta.json says 1,606,938"),
    (shards, lambda to: set_meta(to, tokens=-6), DataError, "where meta.json says -6"),
    (
        shards,
        lambda to: set_meta(to, tokens=6.0),
        DataError,
        r"meta\.json: 'tokens' should be a whole number, got 6\.0",
    ),
    (
        shards,
        lambda to: set_meta(to, file="../outside.bin"),
        PathNotFoundError,
        r"names '\.\./outside\.bin', which does not lie below its folder: .* such as 'outside\.bin'",
    ),
    (
        shards,
        lambda to: set_meta(to, file=str(to.parent / "outside.bin")),
        PathNotFoundError,
        "/outside.bin', which does not lie below its folder",
    ),
    (
        shards,
        lambda to: set_meta(to, file="meta.json"),
        PathNotFoundError,
        r"names 'meta\.json', which has no name of a file",
    ),
    (shards, lambda to: set_meta(to, file="chunk_000001.bin"), DataError, r"it names 'chunk_000001\.bin' twice"),
    (shards, lambda to: (to / "meta.json").write_text("[" * 100_000), DataError, r"meta\.json: cannot be read"),
    (shards, lambda to: (to / "meta.json").write_text('{"a":' * 100_000), DataError, r"meta\.json: cannot be read"),
    (shards, lambda to: (to / "meta.json").write_text("[" + "9" * 10_000 + "]"), DataError, r"meta\.json: "),
    (
        shards,
        lambda to: (to / "meta.json").write_text("[]"),
        DataError,
        r'such as \{"file": "chunk_000000\.bin", "dtype"',
    ),
    (
        shards,
        lambda to: write_llm_c(to / "chunk_000000.bin", [1], wide=True),
        ConfigError,
        "ids of uint32, and not of u",
    ),
    # without meta.json
    (shards, lambda to: (to / "meta.json").unlink(), ConfigError, r"chunk_000000\.bin does not say .* give raw_dtype="),
    # headers
    (
        llm_c,
        lambda to: cut(to / "train.bin", 2),
        DataError,
        r"train\.bin: its header .* 4 ids of uint16 .* and 6 bytes",
    ),
    (llm_c, lambda to: pack_at(to / "train.bin", 8, "<i", -4), DataError, "says that -4 ids"),
    (
        llm_c,
        lambda to: pack_at(to / "train.bin", 4, "<i", 2),
        DataError,
        r"a header of llm\.c .* of version 2, and version 1",
    ),
    (llm_c, lambda to: cut(to / "train.bin", 1000), DataError, "says that 4 ids of uint16 follow, and 0 bytes do"),
    (
        llm_c,
        lambda to: write_llm_c(to / "val.bin", [1], wide=True),
        ConfigError,
        r"train\.bin of uint16, val\.bin of uint32",
    ),
    (
        npy,
        lambda to: cut(to / "a.npy", 1),
        DataError,
        r"a\.npy: its header says that 4 ids of uint16 follow, and 7 bytes",
    ),
    (
        npy,
        lambda to: np.save(to / "a.npy", np.ones((2, 2), "<u2")),
        DataError,
        r"array of shape \(2, 2\).*reshape\(-1\)",
    ),
    (npy, lambda to: np.save(to / "a.npy", np.ones((2, 2), "<u2").T), DataError, "columns first"),
    (npy, lambda to: np.save(to / "a.npy", np.array(7, "<u2")), DataError, "a single number, where ids are one row"),
    (
        npy,
        lambda to: np.save(to / "a.npy", np.ones(3, ">u2")),
        DataError,
        r"'>u2', where ids .* array\.astype\('<u4'\)",
    ),
    (npy, lambda to: np.save(to / "a.npy", np.ones(3)), DataError, "'float64', where ids are little-endian integers"),
    (npy, lambda to: np.save(to / "a.npy", np.ones(3, "i4,u2")), DataError, "where ids are little-endian integers"),
    (npy, lambda to: np.save(to / "a.npy", np.array([{}]), allow_pickle=True), DataError, "it holds Python objects"),
    (npy, lambda to: (to / "a.npy").write_bytes(b"\1\0\2\0"), DataError, "does not begin as a file of NumPy's"),
    (npy, lambda to: (to / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff"), DataError, "its header cannot be read"),
    (
        npy,
        lambda to: (to / "a.npy").write_bytes(b"\x93NUMPY\x03\x00" + bytes(99)),
        DataError,
        "its header cannot be read",
    ),
    (
        npy,
        lambda to: (to / "a.npy").write_bytes(b"\x93NUMPY\x04\x00" + bytes(99)),
        DataError,
        r"its header cannot be read \(.*version",
    ),
    (
        npy,
        lambda to: (to / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x20\x00{'descr': f(), 'a': 1}".ljust(42)),
        DataError,
        r"its header cannot be read \(malformed node or string[^<]*\)",
    ),
    # Megatron's
    (megatron, lambda to: (to / "0.idx").write_bytes(b"x" * 99), DataError, r"0\.idx: not an index of Megatron's"),
    (megatron, lambda to: cut(to / "0.idx", 1), DataError, "too few for the 4 sequences and 3 entries"),
    (megatron, lambda to: pack_at(to / "0.idx", 9, "<q", 2), DataError, "version 2 and type code 8"),
    (megatron, lambda to: pack_at(to / "0.idx", 17, "<b", 7), DataError, "type code 7"),
    (megatron, lambda to: pack_at(to / "0.idx", 18, "<q", -1), DataError, "too few for the 18,446,744,073,709,551,615"),
    (megatron, lambda to: pack_at(to / "0.idx", 17, "<b", 4), DataError, "sequences do not lie one after the other"),
    (megatron, lambda to: pack_at(to / "0.idx", HEAD, "<i", -1), DataError, "sequences do not lie one after the other"),
    (megatron, lambda to: pack_at(to / "0.idx", HEAD + 16 + 8, "<q", 9), DataError, "sequences do not lie one after"),
    (megatron, lambda to: pack_at(to / "0.idx", -8, "<q", 5), DataError, "in order, and the last one ends with 5"),
    (megatron, lambda to: pack_at(to / "0.idx", -24, "<q", 1), DataError, "in order, and the first one begins with 1"),
    (megatron, lambda to: pack_at(to / "0.idx", -16, "<q", -3), DataError, "in order, and after 0 comes -3"),
    (megatron, lambda to: pack_at(to / "0.idx", -16, "<q", 9), DataError, "in order, and after 9 comes 4"),
    (megatron, lambda to: cut(to / "0.bin", 2), DataError, r"0\.idx: its documents hold 4 ids .* 0\.bin has 6 bytes"),
    (megatron, lambda to: cut(to / "0.bin", 1), DataError, r"0\.idx: its documents hold 4 ids .* 0\.bin has 7 bytes"),
    (megatron, lambda to: write_megatron(to / "0", [[[1]]], modes=True), DataError, "a mode for each sequence"),
    (
        megatron,
        lambda to: (to / "0.idx").write_bytes((to / "0.idx").read_bytes() + b"12"),
        DataError,
        "2 more than its",
    ),
    (
        megatron,
        lambda to: (to / "0.bin").unlink(),
        PathNotFoundError,
        r"0\.idx is an index .* 0\.bin, which it tells of",
    ),
    (
        megatron,
        lambda to: (to / "0.idx").unlink(),
        ConfigError,
        r"such as 1\.bin with its index, and others, such as 0\.bin",
    ),
    (
        megatron,
        lambda to: write_megatron(to / "1", [[[1]]], dtype="int32"),
        ConfigError,
        "ids of one type, and there are",
    ),
]


@pytest.mark.parametrize(("make", "break_it", "error", "message"), CASES)
def test_what_is_wrong_is_said_in_one_line_that_names_the_file(
    tmp_path: Path,
    make: Callable[[Path], None],
    break_it: Callable[[Path], object],
    error: type[ParquetLoaderError],
    message: str,
) -> None:
    (tmp_path / "outside.bin").write_bytes(b"\1\0" * 6)
    make(tmp_path / "set")
    assert len(build_index(tmp_path / "set"))
    break_it(tmp_path / "set")
    with pytest.raises(error, match=message) as caught:
        build_index(tmp_path / "set")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [shards, megatron, llm_c, npy])
def test_a_raw_dtype_that_the_files_contradict_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "set")
    assert build_index(tmp_path / "set", raw_dtype="uint16").total_tokens
    with pytest.raises(ConfigError, match=r"known to hold ids of uint16, and not of uint32: leave out raw_dtype"):
        build_index(tmp_path / "set", raw_dtype="uint32")


def test_megatrons_ids_without_their_index_are_a_stream_of_the_given_type(tmp_path: Path) -> None:
    megatron(tmp_path / "set")
    (tmp_path / "set" / "1.idx").unlink()
    with pytest.raises(ConfigError, match=r"give raw_dtype='uint16' .* or put 1\.idx beside it"):
        build_index(tmp_path / "set" / "1.bin")
    assert build_index(tmp_path / "set" / "1.bin", raw_dtype="uint16").is_stream
    (tmp_path / "set" / "0.bin").unlink()
    with pytest.raises(PathNotFoundError, match=r"0\.bin, which it tells of, is not there"):
        build_index(tmp_path / "set" / "0.idx")


def parquet_bytes(path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1, 2]]}), path)


def arrow_bytes(path: Path) -> None:
    table = pa.table({"tokens": [[1, 2]]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def npz_bytes(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), a=np.ones(9))
    path.with_suffix(".npz").rename(path)


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (parquet_bytes, r"a Parquet file: name it \.parquet, or give format='parquet' and no raw_dtype"),
        (arrow_bytes, r"an Arrow file: name it \.arrow, or give format='arrow' and no raw_dtype"),
        (lambda path: path.write_bytes(b"MMIDIDX\x00\x00" + bytes(99)), "an index of Megatron's: name it .idx"),
        (npz_bytes, r"a zip archive, as \.npz files are: unpack it"),
        (lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(60)), "compressed by zstd"),
        (lambda path: path.write_bytes(b"<!DOCTYPE html><html></html>"), "a web page"),
        (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer"),
    ],
)
@pytest.mark.parametrize("name", ["x.bin", "x.u8"])
def test_what_is_no_raw_ids_is_not_read_as_such_whatever_its_name(
    tmp_path: Path, write: Callable[[Path], object], what: str, name: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(DataError, match=f"it holds no raw ids; it is {what}"):
        build_index(tmp_path / name, raw_dtype="uint8", format="raw")


def test_what_they_say_it_is_can_be_read_as_they_say(tmp_path: Path) -> None:
    parquet_bytes(tmp_path / "p.bin")
    arrow_bytes(tmp_path / "a.bin")
    assert build_index(tmp_path / "p.bin", format="parquet").total_tokens == 2
    assert build_index(tmp_path / "a.bin", format="arrow").total_tokens == 2


def test_an_npz_is_told_to_be_unpacked_and_what_comes_of_that_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(9, dtype="<u2"))
    with pytest.raises(DataError, match=r"unpack it, numpy\.load\(path\)\[name\], and save each as \.npy"):
        build_index(tmp_path / "x.npz")
    np.save(tmp_path / "a.npy", np.load(tmp_path / "x.npz")["a"])
    assert build_index(tmp_path / "a.npy").total_tokens == 9


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(9, dtype="<u2"), version=version)
    index = build_index(tmp_path)
    assert (index.total_tokens, index.layouts[0].dtype) == (9, np.uint16)


@pytest.mark.parametrize("name", ["train.bin", "train.npy"])
def test_files_without_an_id_are_said_to_be_empty(tmp_path: Path, name: str) -> None:
    none = np.empty(0, "<u2")
    np.save(tmp_path / name, none) if name.endswith(".npy") else none.tofile(tmp_path / name)
    with pytest.raises(ConfigError, match="holds no token: its 1 files are empty"):
        ParquetLoader(tmp_path / name, **OPTIONS, raw_dtype="uint16")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32"])
def test_an_eos_id_that_no_id_of_the_type_can_be_is_refused(tmp_path: Path, dtype: str) -> None:
    write_shards(tmp_path / "set", [[[1, 2], [3]], [[4] * 9]], eos_id=EOS, dtype=dtype)
    most = int(np.iinfo(dtype).max)
    given = {"eos_id": most + 1, "vocab_size": most + 2, "dtype": "int64"}
    with pytest.raises(ConfigError, match=rf"eos_id={most + 1} ends no document .*, whose ids are {dtype}, at most"):
        ParquetLoader(tmp_path / "set", **OPTIONS | given)
    for look in (check, inspect):
        with pytest.raises(ConfigError, match=f"eos_id={most + 1} ends no document"):
            look(tmp_path / "set", eos_id=most + 1)
    ParquetLoader(tmp_path / "set", **OPTIONS | given | {"eos_id": most}).close()


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "exploded",)

    (tmp_path / "set").mkdir()
    np.save(tmp_path / "set" / "a.npy", np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(DataError, match="it holds Python objects"):
        build_index(tmp_path / "set")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_an_id_out_of_range_is_an_error_that_tells_where(tmp_path: Path, dtype: str) -> None:
    value = VOCAB_SIZE if dtype == "uint16" else -1
    write_shards(tmp_path / "set", [[[1, 2], [3, value]], [[4] * 9]], eos_id=EOS, dtype=dtype)
    with ParquetLoader(tmp_path / "set", **OPTIONS, shuffle=False) as loader:
        message = rf"chunk_000000\.bin, row group 0.*token 4 has token id {value}, outside \[0, 300\)"
        with pytest.raises(DataError, match=message):
            list(loader)


def negative_shards(folder: Path, dtype: str) -> None:
    write_shards(folder, [[[1, 2], [3, -1]], [[4] * 9]], eos_id=EOS, dtype=dtype)


def negative_bin(folder: Path, dtype: str) -> None:
    folder.mkdir()
    np.array([1, 2, EOS, 3, -1, EOS], dtype).tofile(folder / "train.bin")


def negative_npy(folder: Path, dtype: str) -> None:
    folder.mkdir()
    np.save(folder / "a.npy", np.array([1, 2, EOS, 3, -1, EOS], dtype))


def negative_megatron(folder: Path, dtype: str) -> None:
    folder.mkdir()
    write_megatron(folder / "0", [[[1, 2]], [[3, -1]]], dtype=dtype)


def negative_arrow(folder: Path, dtype: str) -> None:
    folder.mkdir()
    table = pa.table({"tokens": pa.array([[1, 2], [3, -1]], pa.list_(pa.from_numpy_dtype(dtype)))})
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)


def negative_parquet(folder: Path, dtype: str) -> None:
    folder.mkdir()
    table = pa.table({"tokens": pa.array([[1, 2], [3, -1]], pa.list_(pa.from_numpy_dtype(dtype)))})
    pq.write_table(table, folder / "a.parquet", write_statistics=False)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize(
    "make",
    [negative_shards, negative_bin, negative_npy, negative_megatron, negative_arrow, negative_parquet],
)
def test_negative_ids_of_any_type_and_format_are_refused_whatever_the_vocabulary(
    tmp_path: Path, make: Callable[[Path, str], None], dtype: str
) -> None:
    """Also where the ids are held in two bytes, in which -1 would be 65535."""
    make(tmp_path / "set", dtype)
    raw_dtype = dtype if make is negative_bin else None
    for vocab_size in (None, 100, 300, 40_000, 65_536, 70_000):
        for eos_id in (None, EOS):
            given = {"vocab_size": vocab_size, "eos_id": eos_id, "shuffle": False, "raw_dtype": raw_dtype}
            with (
                pytest.raises(DataError, match=r"has token id -1.*, outside \[0, "),
                ParquetLoader(tmp_path / "set", **OPTIONS | given) as loader,
            ):
                list(loader)


def test_columns_are_not_to_be_had_of_raw_files(tmp_path: Path) -> None:
    from parquet_loader.insight import columns_of
    from parquet_loader.storage import open_storage

    shards(tmp_path / "set")
    with pytest.raises(ConfigError, match="raw files hold ids alone, and no column 'url'"):
        columns_of(open_storage(tmp_path / "set"), build_index(tmp_path / "set"), [("chunk_000000.bin", 0, 0)], ["url"])


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged(rng: np.random.Generator, raw: bytes) -> bytes:
    """Some bytes with some of them changed, cut out or put in, most often near the beginning."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, max(1, len(data) if rng.integers(2) else min(60, len(data)))))
        kind = int(rng.integers(5))
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + int(rng.integers(1, 9))] = b""
        elif kind == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 3 and data:
            data[min(at, len(data) - 1)] ^= 1 << int(rng.integers(8))
        else:
            data[at : at + 8] = struct.pack("<q", int(rng.choice([-1, 0, 1, 1 << 20, 1 << 31, 1 << 40, 1 << 62])))[:8]
    return bytes(data)


def everything(folder: Path) -> None:
    """What the loader does with a set that may be damaged."""
    with ParquetLoader(folder, **OPTIONS, raw_dtype="uint16", cache_dir=folder.parent / "cache") as loader:
        for batch in loader:
            assert batch.tokens.min() >= 0
            assert batch.tokens.max() < VOCAB_SIZE


@pytest.mark.parametrize("make", [shards, megatron, llm_c, npy])
def test_damaged_files_are_an_error_or_ids_of_the_vocabulary(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """1,500 damages in all, of data and of what lies beside it."""
    rng = np.random.default_rng(20261130)
    make(tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    read = refused = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(375):
        folder = tmp_path / "set"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        name = names[number % len(names)]
        (folder / name).write_bytes(damaged(rng, (folder / name).read_bytes()))
        try:
            everything(folder)
            read += 1
        except ParquetLoaderError as error:
            assert "\n" not in str(error)
            refused += 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KB
    assert refused > 100
    assert read > 10 or make is not shards


@pytest.mark.parametrize("make", [shards, megatron])
def test_bit_rot_under_a_known_index_is_an_error_or_ids_of_the_vocabulary(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Neither size nor time of a file tells that its bytes are others than those that were indexed."""
    rng = np.random.default_rng(7)
    folder = tmp_path / "set"
    make(folder)
    index = build_index(folder)
    paths = [folder / file.path for file in index.files if file.path != "meta.json"]
    refused = read = 0
    for number in range(200):
        path = paths[number % len(paths)]
        status, raw = path.stat(), path.read_bytes()
        rotten = bytearray(raw)
        rotten[int(rng.integers(len(rotten)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(rotten)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        try:
            with ParquetLoader(folder, **OPTIONS, index=index) as loader:
                assert max(int(batch.tokens.max()) for batch in loader) < VOCAB_SIZE
            read += 1
        except DataError as error:
            assert path.stem in str(error)
            refused += 1
        path.write_bytes(raw)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read > 20
    assert refused > 20


@pytest.mark.parametrize("make", [shards, megatron])
def test_an_index_from_outside_is_refused_or_leads_nowhere(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = tmp_path / "set"
    make(folder)
    index = build_index(folder)
    for place in range(len(index.numbers)):
        for value in (-2, -1, 0, 1, 35, 1 << 20, 1 << 40, 1 << 62):
            numbers = index.numbers.copy()
            numbers[place, 0] = value
            arrays = dict(zip(ENTRY_ARRAYS, numbers, strict=False))
            made_up = replace(index, **arrays, places=numbers[len(ENTRY_ARRAYS) :])
            try:
                saved = DatasetIndex.from_bytes(made_up.to_bytes())
                with ParquetLoader(folder, **OPTIONS, index=saved) as loader:
                    assert all(int(batch.tokens.max()) < VOCAB_SIZE for batch in loader)
            except ParquetLoaderError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("make", [shards, megatron])
def test_a_copy_is_read_by_the_index_of_the_original_and_another_set_is_not(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "set")
    build_index(tmp_path / "set").save(tmp_path / "saved")
    shutil.copytree(tmp_path / "set", tmp_path / "copy")
    for path in (tmp_path / "copy").iterdir():
        os.utime(path, (1, 1))
    rows = []
    for name in ("set", "copy"):
        with ParquetLoader(tmp_path / name, **OPTIONS, index=tmp_path / "saved") as loader:
            rows.append([batch.tokens.tolist() for batch in loader])
    assert rows[0] == rows[1]
    if make is megatron:  # as many documents and tokens, and another border between two
        (tmp_path / "copy" / "0.idx").unlink()
        write_megatron(tmp_path / "copy" / "0", [[[1], [2]], [[3], [299]]])
    else:
        set_meta(tmp_path / "copy", tokens=7)
    with (
        ParquetLoader(tmp_path / "copy", **OPTIONS, index=tmp_path / "saved") as loader,
        pytest.raises(FileChangedError, match="it holds something else than the index has"),
    ):
        list(loader)
