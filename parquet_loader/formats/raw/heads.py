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

__all__ = ["LONGEST_HEAD", "Head", "llm_c_head", "npy_head"]

_NPY = b"\x93NUMPY"
_LLM_C_BYTES = 1024
# The number that tells the kind, and the version: how llm.c and modded-nanogpt store ids of GPT-2 and of Llama 3.
_LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
LONGEST_HEAD = 4096  # of one row of integers NumPy's own are of 128 bytes

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
        DataError: it is of another size than its header says.
    """
    if len(raw) < _LLM_C_BYTES:
        return None
    kind, version, tokens = np.frombuffer(raw, "<i4", 3).tolist()
    stored = _LLM_C.get((kind, version))
    if stored is None:
        return None
    head = Head(dtype=np.dtype(stored), start=_LLM_C_BYTES, tokens=tokens)
    if size != head.start + tokens * head.dtype.itemsize:
        raise DataError(
            f"its header (of {head.start:,} bytes, number {kind}, version {version}) says that {tokens:,} ids of "
            f"{head.dtype} follow, and {size - head.start:,} bytes do: it is cut short or damaged.",
            path=path,
        )
    return head


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
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version[0]}.{version[1]}, which has fields with names")  # noqa: TRY301
        shape, is_fortran, dtype = read(stream)
    except Exception as error:  # whatever parsing what is no header may raise
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise DataError(
            f"its header cannot be read ({reason}): it is damaged, or no list of ids.", path=path
        ) from error
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
