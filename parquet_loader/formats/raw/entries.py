"""The row groups of raw files, and the files beside them that tell of these.

    meta.json lies beside     its files, in its order, of its dtype          a stream
    NAME.idx lies beside      NAME.bin, as Megatron writes it                documents
    NAME.npy                  what NumPy's header says                       a stream
    NAME.bin                  what its header says, if it has one; or else   a stream
                              ids of ``raw_dtype`` and nothing else

Nothing groups a file's rows, so a row group is what about a million tokens take: of documents whole ones, of a stream
equal stretches, whatever documents that cuts in two.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from ...blocks import IntArray
from ...errors import ConfigError, DataError, PathNotFoundError
from ...storage.base import FileInfo, Storage
from ...storage.kinds import kind_of
from ..base import CODEC_NAMES, ENTRY_ARRAYS, MAX_SLOTS, STREAM_DOCUMENT_TOKENS, ColumnLayout, Counting, FileEntry
from .heads import LONGEST_HEAD, Head, llm_c_head, npy_head, refuse_other
from .megatron import HEAD_BYTES, MegatronHead, check_size, document_ends, read_head
from .meta import MetaFile, read_meta

__all__ = ["GROUP_TOKENS", "MOST_SEQUENCES", "RawReader", "checksum_of", "idx_of", "impossible", "stored_dtype"]

GROUP_TOKENS = 1 << 20
# Of Megatron's, where there are more than one document: what tells of their lengths stays small.
MOST_SEQUENCES = 1 << 17
DEFAULT_COLUMN = "tokens"  # what ids without a name are called
_LONGEST_META = 64 << 20
_NAMES = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
_CODEC = CODEC_NAMES.index("UNCOMPRESSED")
_NO_PAGES = (-1, 0, _CODEC)
_PLACES = ("lengths", "sequences", "entries", "checksum")  # a row group's own numbers, see `impossible`


def stored_dtype(name: str) -> np.dtype[np.integer] | None:
    """The type of ids of a name; None where there is none."""
    return np.dtype(name).newbyteorder("<") if name in _NAMES else None


def checksum_of(ends: IntArray, checksum: int = 0) -> int:
    """A checksum of where documents end, counted in tokens of the row group, shape ``(documents,)``; going on from that
    of those before.
    """
    return zlib.crc32(ends.astype("<i8", copy=False).tobytes(), checksum)


def idx_of(path: str) -> str:
    """Where Megatron's index of a file of ids lies."""
    return path.removesuffix(".bin") + ".idx"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What tells of a file, and is known before the file is looked at.

    Attributes:
        meta: what a ``meta.json`` says of it, which lies at `beside`; None where none does.
        beside: the file that tells of it: ``meta.json``, or Megatron's index; None where there is none.
        data: of a file that tells of others and holds no ids, the first of those.
    """

    meta: MetaFile | None = None
    beside: FileInfo | None = None
    data: FileInfo | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether it is a file of ids with Megatron's index."""
        return self.meta is None and self.beside is not None


class RawReader:
    """See `formats.base.EntryReader`.

    Args:
        storage: where the files lie.
        listed: what there is.
        raw_dtype: of ids in files that do not tell it.

    Raises:
        ConfigError: the files are not one set, or do not tell what is needed.
        DataError: a ``meta.json`` that is damaged, or does not fit its files.
        PathNotFoundError: a file that another one tells of is not there.
    """

    def __init__(self, storage: Storage, listed: Sequence[FileInfo], raw_dtype: np.dtype[np.integer] | None) -> None:
        self._storage = storage
        self._raw_dtype = raw_dtype
        self._by_path = {file.path: file for file in listed}
        self._kinds: dict[str, _Kind] = {}
        files: list[FileInfo] = []
        metas = [file for file in listed if posixpath.basename(file.path) == "meta.json"]
        for file in metas:
            files += self._read_meta(file)
        # What a meta.json does not name, and lies below its folder, is not of the set, unless it is named itself.
        told = tuple(file.path.removesuffix("meta.json") for file in metas if not file.is_beside)
        for file in listed:
            if file.path not in self._kinds and not file.path.startswith(told) and self._tells(file):
                self._kinds[file.path] = self._kind_of(file)
                files.append(file)
        self._refuse_both()
        self.files: Sequence[FileInfo] = files

    def together(self, file: FileInfo) -> Sequence[FileInfo]:
        """See `formats.base.EntryReader.together`."""
        kind = self._kinds[file.path]
        return [each for each in (kind.beside, kind.data) if each is not None]

    def read(
        self, file: FileInfo, column: str | None, counting: Counting | None, aligned: Sequence[str] = ()
    ) -> FileEntry:
        """See `formats.base.EntryReader.read`."""
        if aligned:
            raise ConfigError(
                f"{file.path} holds token ids alone, and no column {aligned[0]!r}: aligned columns are for Parquet and "
                "Arrow files"
            )
        name = DEFAULT_COLUMN if column is None else column
        kind = self._kinds.get(file.path)
        if kind is None:
            raise DataError("it tells of none of the files that it lies beside.", path=file.path)
        if kind.beside is not None and kind.is_indexed:
            return self._megatron_entry(file, kind.beside, name)
        if kind.data is not None and self._kinds[kind.data.path].is_indexed:
            return _entry(name, "documents", self._megatron_head(file).dtype, [])
        if kind.data is not None:
            said = self._dtype(kind.data, self._kinds[kind.data.path].meta)
            return _entry(name, "stream", said or self._head(kind.data).dtype, [])
        head = self._head(file)
        return _entry(name, "stream", head.dtype, _stream_groups(head))

    # ── what lies beside ─────────────────────────────────────────────────────────────────────────────────────────

    def _tells(self, file: FileInfo) -> bool:
        """Whether a file is one of the set, and not one that lies beside those that are named and tells of none."""
        if file.is_beside and file.path.endswith(".idx"):
            data = self._kinds.get(file.path.removesuffix(".idx") + ".bin")
            return data is None or data.meta is None
        return not file.is_beside or posixpath.basename(file.path) != "meta.json"

    def _kind_of(self, file: FileInfo) -> _Kind:
        """What tells of a file that no ``meta.json`` names."""
        if file.path.endswith(".idx"):
            data = self._by_path.get(file.path.removesuffix(".idx") + ".bin")
            if data is None:
                name = posixpath.basename(file.path).removesuffix(".idx")
                raise PathNotFoundError(
                    f"{self._storage.root}/{file.path} is an index of Megatron's, and {name}.bin, which it tells of, "
                    "is not there: fetch it, or name the folder in which both lie"
                )
            return _Kind(data=data)
        return _Kind(beside=self._by_path.get(idx_of(file.path)) if file.path.endswith(".bin") else None)

    def _refuse_both(self) -> None:
        """Refuse files of which some have documents by an index, and others are streams."""
        data = {path: kind for path, kind in self._kinds.items() if kind.data is None}
        indexed = next((path for path, kind in data.items() if kind.is_indexed), None)
        stream = next((path for path, kind in data.items() if not kind.is_indexed), None)
        if indexed is not None and stream is not None:
            raise ConfigError(
                f"{self._storage.root} holds files of Megatron's, such as {indexed} with its index, and others, such "
                f"as {stream}, whose documents no index tells: name those of one kind, or load them as sources of a "
                "mixture"
            )

    def _read_meta(self, file: FileInfo) -> list[FileInfo]:
        """The files that a ``meta.json`` names, and itself. Beside files that are named it tells of those, or of none
        where it is something else under that name.
        """
        shown = f"{self._storage.root}/{file.path}"
        if file.size > _LONGEST_META:
            raise DataError(f"{file.size:,} bytes are too many to tell of files of ids.", path=shown)
        folder = posixpath.dirname(file.path)
        found: list[FileInfo] = []
        types: dict[str, str] = {}
        for entry in read_meta(self._storage.read(file, 0, file.size), shown, may_be_other=file.is_beside):
            path = posixpath.normpath(posixpath.join(folder, entry.file))
            data = self._by_path.get(path)
            if data is None and file.is_beside:
                continue
            if data is None or data == file or not path.startswith(f"{folder}/" if folder else ""):
                raise self._not_to_be_had(entry.file, path, folder, shown)
            if path in self._kinds:
                raise DataError(f"it names {entry.file!r} twice.", path=shown)
            found.append(data)
            self._kinds[path] = _Kind(meta=entry, beside=file)
            types.setdefault(entry.dtype or "", entry.file)
        if len(types) > 1:
            (one, first), (other, second), *_ = types.items()
            raise ConfigError(
                f"{shown} says that {first!r} holds ids of {one or 'no known type'} and {second!r} of "
                f"{other or 'no known type'}, and those of a set are of one: load them as sources of a mixture"
            )
        if not found:
            return []
        self._kinds[file.path] = _Kind(data=found[0])
        return [*found, file]

    def _not_to_be_had(self, name: str, path: str, folder: str, shown: str) -> PathNotFoundError:
        """The error for a file that a ``meta.json`` names, and that cannot be one of the set."""
        if path.startswith(("/", "../")) or not path.startswith(f"{folder}/" if folder else ""):
            what = f"does not lie below its folder: name it from there on, such as {posixpath.basename(path)!r}"
        elif kind_of(path) != "raw":
            what = "has no name of a file of ids, which ends with .bin or .npy"
        elif not any(map(kind_of, self._by_path)):
            what = f"is not there, or not named: name the folder {posixpath.dirname(shown)}"
        else:
            what = "is not there: fetch it, or take it out of the list"
        return PathNotFoundError(f"{shown} names {name!r}, which {what}")

    def _megatron_head(self, index: FileInfo) -> MegatronHead:
        raw = self._storage.read(index, 0, min(index.size, HEAD_BYTES))
        head = read_head(raw, index.size, index.path)
        check_size(head, index.size, index.path)
        if self._raw_dtype is not None and self._raw_dtype != head.dtype:
            raise _other_dtype(index.path, head.dtype, self._raw_dtype)
        return head

    def _megatron_entry(self, file: FileInfo, index: FileInfo, column: str) -> FileEntry:
        head = self._megatron_head(index)
        groups = _Groups(head)
        for ends, tokens in document_ends(partial(self._storage.read, index), head, index.path):
            groups.add(ends, tokens)
        groups.close()
        if groups.tokens * head.dtype.itemsize != file.size:
            raise DataError(
                f"its documents hold {groups.tokens:,} ids of {head.dtype}, and {file.path} has {file.size:,} bytes. "
                "The two do not belong together, or one is damaged or cut short.",
                path=index.path,
            )
        return _entry(column, "documents", head.dtype, groups.found)

    def _head(self, file: FileInfo) -> Head:
        """What a file of a stream holds, and where."""
        meta = self._kinds[file.path].meta
        raw = self._storage.read(file, 0, min(file.size, LONGEST_HEAD))
        if file.path.endswith(".npy") or raw.startswith(b"\x93NUMPY"):
            told: Head | None = npy_head(raw, file.size, file.path)
        else:
            told = llm_c_head(raw, file.size, file.path)
        dtype = self._dtype(file, meta)
        if told is not None and dtype is not None and dtype != told.dtype:
            raise _other_dtype(file.path, told.dtype, dtype)
        if told is None:
            refuse_other(raw, file.path)
            told = _headless(file, dtype)
        if meta is not None and meta.tokens is not None and meta.tokens != told.tokens:
            raise DataError(
                f"it holds {told.tokens:,} ids of {told.dtype}, where meta.json says {meta.tokens:,}: one of the two "
                "is damaged, or another version's.",
                path=file.path,
            )
        return told

    def _dtype(self, file: FileInfo, meta: MetaFile | None) -> np.dtype[np.integer] | None:
        """What a file's ids are said to be."""
        if meta is None or meta.dtype is None:
            return self._raw_dtype
        dtype = stored_dtype(meta.dtype)
        if dtype is None:
            raise DataError(
                f"its ids are {meta.dtype!r} by meta.json, which is none of {', '.join(_NAMES)}.", path=file.path
            )
        if self._raw_dtype is not None and self._raw_dtype != dtype:
            raise _other_dtype(file.path, dtype, self._raw_dtype)
        return dtype


def _other_dtype(path: str, known: np.dtype[np.integer], said: np.dtype[np.integer]) -> ConfigError:
    return ConfigError(
        f"{path} is known to hold ids of {known}, and not of {said}: leave out raw_dtype, or mend meta.json"
    )


def _headless(file: FileInfo, dtype: np.dtype[np.integer] | None) -> Head:
    if dtype is None:
        idx = posixpath.basename(idx_of(file.path))
        beside = f", or put {idx} beside it, if it is Megatron's" if file.path.endswith(".bin") else ""
        raise ConfigError(
            f"{file.path} does not say of which type its ids are, and no meta.json beside it does: give "
            f"raw_dtype='uint16' or raw_dtype='uint32' (--raw-dtype on the command line){beside}"
        )
    if file.size % dtype.itemsize:
        raise DataError(
            f"{file.size:,} bytes are not a whole number of {dtype.itemsize}-byte ids: cut short, or of another type "
            f"than {dtype}.",
            path=file.path,
        )
    return Head(dtype=dtype, start=0, tokens=file.size // dtype.itemsize)


# ── row groups ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A row group.

    Attributes:
        rows: documents, or what they are taken to be.
        slots: see `ColumnChunk.slots`.
        tokens: how many.
        start: its first byte.
        places: see `impossible`.
    """

    rows: int
    slots: int
    tokens: int
    start: int
    places: tuple[int, ...] = (-1, 0, -1, 0)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Its first numbers in an entry."""
        return self.rows, self.slots, self.tokens


def _stream_groups(head: Head) -> list[_Group]:
    """Stretches of a stream; the last one may be smaller by half, or as much larger."""
    count = max(1, round(head.tokens / GROUP_TOKENS)) if head.tokens else 0
    borders = [*(number * GROUP_TOKENS for number in range(count)), head.tokens]
    return [
        _Group(
            rows=(end - begin) // STREAM_DOCUMENT_TOKENS + 1,
            slots=end - begin,
            tokens=end - begin,
            start=head.start + begin * head.dtype.itemsize,
        )
        for begin, end in pairwise(borders)
    ]


class _Groups:
    """Megatron's documents, one after another, in row groups.

    Attributes:
        found: the row groups.
        tokens: of all documents that came.
    """

    def __init__(self, head: MegatronHead) -> None:
        self._head = head
        self.found: list[_Group] = []
        self.tokens = 0
        self._documents = self._sequences = 0  # that came
        self._begin = (0, 0, 0)  # documents, sequences and tokens before the row group that is open
        self._is_plain = True  # whether each of its documents is a sequence
        self._empty = 0  # of its documents
        self._checksum = 0

    def add(self, ends: IntArray, tokens: IntArray) -> None:
        """Documents that follow: where they end among sequences, and among tokens, shape ``(documents,)``."""
        plain = np.diff(ends, prepend=self._sequences) == 1
        empty = np.diff(tokens, prepend=self.tokens) == 0
        at = 0
        while at < len(ends):
            documents, sequences, first = self._begin
            stop = int(tokens.searchsorted(first + GROUP_TOKENS, side="right"))
            stop = min(stop, int(ends.searchsorted(sequences + MOST_SEQUENCES, side="right")))
            stop = min(stop, at + documents + MOST_SEQUENCES - self._documents)
            if self._documents == documents:  # one at least
                stop = max(stop, at + 1)
            if stop > at:
                self._is_plain &= bool(plain[at:stop].all())
                self._empty += int(np.count_nonzero(empty[at:stop]))
                self._checksum = checksum_of(tokens[at:stop] - first, self._checksum)
                self._documents += stop - at
                self._sequences, self.tokens = int(ends[stop - 1]), int(tokens[stop - 1])
                at = stop
            if at < len(ends):
                self.close()

    def close(self) -> None:
        """What came belongs to a row group that ends here."""
        head = self._head
        documents, sequences, first = self._begin
        rows, tokens = self._documents - documents, self.tokens - first
        if not rows:
            return
        self.found.append(
            _Group(
                rows=rows,
                slots=tokens + self._empty,
                tokens=tokens,
                start=first * head.dtype.itemsize,
                places=(
                    head.lengths_at + 4 * sequences,
                    self._sequences - sequences,
                    -1 if self._is_plain else head.entries_at + 8 * documents,
                    self._checksum,
                ),
            )
        )
        self._begin = self._documents, self._sequences, self.tokens
        self._is_plain, self._empty, self._checksum = True, 0, 0


def _entry(column: str, kind: str, dtype: np.dtype[np.integer], groups: Iterable[_Group]) -> FileEntry:
    layout = ColumnLayout(
        column=column,
        physical_type=dtype.name,
        signed=dtype.kind == "i",
        max_definition_level=1,
        nullable_element=False,
        kind=kind,
    )
    rows = [
        (
            number,
            *(each.rows, each.slots, each.tokens),
            -1,
            0,
            each.start,
            each.tokens * dtype.itemsize,
            *_NO_PAGES,
            *each.places,
        )
        for number, each in enumerate(groups)
    ]
    numbers = np.array(rows, np.int64).reshape(-1, len(ENTRY_ARRAYS) + len(_PLACES)).T
    return FileEntry({column: (layout, np.ascontiguousarray(numbers))})


def impossible(numbers: IntArray, sizes: IntArray | int) -> tuple[int, str] | None:
    """See `Format.impossible`. A row group of Megatron's has numbers of its own: the byte of the index at which its
    sequences' lengths begin, how many of these there are, the byte at which its entries of documents begin, or -1 where
    each sequence is a document, and a checksum of where its documents end. In a stream they are -1, 0, -1 and 0.
    """
    if len(numbers) != len(ENTRY_ARRAYS) + len(_PLACES):
        return (0, f"{len(numbers)} in all") if numbers.shape[1] else None
    of = dict(zip((*ENTRY_ARRAYS, *_PLACES), numbers, strict=True))
    wrong = (of["row_group"] < 0) | (of["rows"] < 1) | (of["slots"] < of["rows"]) | (of["slots"] > MAX_SLOTS)
    wrong |= (of["tokens"] < 0) | (of["tokens"] > of["slots"])
    wrong |= (of["start"] < 0) | (of["start"] > sizes) | (of["length"] < 0) | (of["length"] > sizes - of["start"])
    wrong |= (of["length"] % np.maximum(of["tokens"], 1) != 0) | (of["length"] > 8 * of["tokens"])
    wrong |= (of["length"] < of["tokens"]) | (of["codec"] != _CODEC)
    wrong |= (of["sequences"] < 0) | (of["sequences"] > MAX_SLOTS)
    for place in ("lengths", "entries"):
        wrong |= (of[place] < -1) | (of[place] > MAX_SLOTS)
    if not wrong.any():
        return None
    at = int(wrong.argmax())
    shown = ("rows", "slots", "tokens", "start", "length", *_PLACES)
    return at, ", ".join(f"{name} {int(of[name][at]):,}" for name in shown)
