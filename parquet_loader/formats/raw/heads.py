"""How a file of ids begins, where it says itself what it holds: NumPy's ``.npy``, and the ``.bin`` of llm.c.

.npy       "\\x93NUMPY", version, length, {'descr': '<u2', 'fortran_order': False, 'shape': (1000,)}   then the ids
.bin       256 int32: a number that tells the kind, a version, how many ids, zeros                    then the ids
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

import numpy as np

from ...errors import DataError
from ..parts import what_it_is

__all__ = ["LONGEST_HEAD", "Head", "llm_c_head", "npy_head", "refuse_other"]

_NPY = b"\x93NUMPY"
_LLM_C_BYTES = 1024
# By the number that tells the kind, the version and the type: ids of GPT-2 and of Llama 3, by llm.c and modded-nanogpt.
_LLM_C = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
# What begins like this is something else, and not ids that nobody would have written in that order.
_OTHERS = {
    b"PAR1": "a Parquet file: name it .parquet, or give format='parquet' and no raw_dtype",
    b"ARROW1": "an Arrow file: name it .arrow, or give format='arrow' and no raw_dtype",
    b"MMIDIDX\x00": "an index of Megatron's: name it .idx, beside its .bin",
    b"PK\x03\x04": "a zip archive, as .npz files are: unpack it, numpy.load(path)[name], and save each as .npy",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: decompress it",
}
LONGEST_HEAD = 4096  # of one row of integers NumPy's own are of 128 bytes

_OBJECT = re.compile(r"(on line \d+)?: <[^>]* object at 0x[0-9a-f]+>")  # what Python says of a node that it parsed
_NO_ORDER = re.compile(r"[|<=]?[iu][1248]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a file says of itself.

    Attributes:
        dtype: of its ids.
        start: the byte at which they begin.
        tokens: how many there are.
    """

    dtype: np.dtype[np.integer]
    start: int
    tokens: int


def llm_c_head(raw: bytes, size: int, path: str) -> Head | None:
    """What a ``.bin`` with a header says; None where it has none.

    Args:
        raw: its first bytes.
        size: of the file.
        path: how errors name it.

    Raises:
        DataError: it is of another size than its header says, or of a version that is not known.
    """
    if len(raw) < 12:
        return None
    kind, version, tokens = np.frombuffer(raw, "<i4", 3).tolist()
    if kind not in _LLM_C:
        return None
    known, stored = _LLM_C[kind]
    if version != known:
        raise DataError(
            f"it begins with a header of llm.c (number {kind}) of version {version}, and version {known} is what is "
            "read: write it anew, or cut off its header and give raw_dtype.",
            path=path,
        )
    head = Head(dtype=np.dtype(stored), start=_LLM_C_BYTES, tokens=tokens)
    if size != head.start + tokens * head.dtype.itemsize:
        raise DataError(
            f"its header (of {head.start:,} bytes, number {kind}, version {version}) says that {tokens:,} ids of "
            f"{head.dtype} follow, and {max(0, size - head.start):,} bytes do: it is cut short or damaged.",
            path=path,
        )
    return head


def refuse_other(raw: bytes, path: str) -> None:
    """Refuse a file that has no header of ids, and begins as something else does.

    Args:
        raw: its first bytes.
        path: how errors name it.

    Raises:
        DataError: it does; says what it is.
    """
    what = next((what for magic, what in _OTHERS.items() if raw.startswith(magic)), None)
    what = f"it is {what}" if what is not None else what_it_is(raw[:64])
    if what is not None:
        raise DataError(f"it holds no raw ids; {what}.", path=path)


def npy_head(raw: bytes, size: int, path: str) -> Head:
    """What a ``.npy`` says.

    Args:
        raw: its first bytes, `LONGEST_HEAD` or all that there are.
        size: of the file.
        path: how errors name it.

    Raises:
        DataError: it is none, or no list of integers, or of another size than it says.
    """
    if not raw.startswith(_NPY):
        raise DataError(
            "it does not begin as a file of NumPy's does. If it holds nothing but ids, as dolma writes them, "
            "`python -m parquet_loader.pretokenize.convert` reads it; or name it .bin and give raw_dtype.",
            path=path,
        )
    stream = io.BytesIO(raw)
    try:
        major, minor = np.lib.format.read_magic(stream)
        if (major, minor) == (3, 0):  # as version 2, but for a header that is UTF-8, as what is ASCII is already
            stream = io.BytesIO(b"\x93NUMPY\x02\x00" + raw[stream.tell() :])
            stream.seek(len(_NPY) + 2)
        if major not in (1, 2, 3) or minor:
            raise ValueError(f"version {major}.{minor} is not known")  # noqa: TRY301
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
    except Exception as error:  # whatever parsing what is no header may raise
        reason = _OBJECT.sub("", " ".join(str(error).split()))[:200].rstrip(" .:") or type(error).__name__
        raise DataError(
            f"its header cannot be read ({reason}): it is damaged, or no list of ids.", path=path
        ) from error
    if not shape:
        raise DataError("it holds a single number, where ids are one row of integers.", path=path)
    if len(shape) != 1 or is_fortran:
        what = f"an array of shape {shape}" + (", columns first" if is_fortran else "")
        raise DataError(f"{what}, where ids are one row of integers: save array.reshape(-1).", path=path)
    if not _NO_ORDER.fullmatch(dtype.str):
        kind = "Python objects" if dtype.hasobject else f"{str(dtype)!r}"
        cure = "save array.astype('<u4')" if dtype.kind in "iu" else "save an array of integers"
        raise DataError(f"it holds {kind}, where ids are little-endian integers: {cure}.", path=path)
    head = Head(dtype=np.dtype(dtype), start=stream.tell(), tokens=int(shape[0]))
    if size != head.start + head.tokens * head.dtype.itemsize:
        raise DataError(
            f"its header says that {head.tokens:,} ids of {head.dtype} follow, and {size - head.start:,} bytes do: it "
            "is cut short or damaged.",
            path=path,
        )
    return head
