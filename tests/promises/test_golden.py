"""The order of several configurations, pinned.

These digests may change only together with the version of the checkpoint format: whoever resumes a run with a newer
release, on another platform or with another NumPy must get the order that the run began with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader

# Lengths without randomness, so that the set is the same for ever: uneven groups, empty documents, an empty group.
FILES = [
    [[(7 * d * d + 13 * g + 5 * f) % 41 for d in range(3 + (5 * g + f) % 17)] for g in range(6)] + [[0, 0]]
    for f in range(5)
]

CASES = {
    "plain": dict(seq_len=32, lanes=8, window=4, seed=0),
    "one lane": dict(seq_len=32, lanes=1, window=3, seed=1),
    "many lanes": dict(seq_len=5, lanes=61, window=100, seed=2**64 - 1),
    "window of one": dict(seq_len=17, lanes=6, window=1, seed=12345),
    "with eos": dict(seq_len=32, lanes=8, window=4, seed=0, eos_id=50256),
    "overlap": dict(seq_len=32, lanes=8, window=4, seed=0, overlap=1),
    "storage order": dict(seq_len=32, lanes=8, window=4, shuffle=False),
}
GOLDEN = {
    "plain": "134d230d3d817f0106a289a3f1c2e34cd051b8aa8b5981ec9d928370e32f96d5",
    "one lane": "3220be2d1d674ec7e1a47290b263d923104563b49308c6bc1deb4f809dd27522",
    "many lanes": "0f62f44f061af7b3db342fb1fa9ad76a032d839b2a557464b6791ab9b7183252",
    "window of one": "bb147d005316a83d9e660dc975b65e56681acccdc1b98b168f95b4db3a2d9d83",
    "with eos": "7736eae987d86aa1d5f8ff0978b0a3884e2d624d11436acbd8c6ec221c104fc6",
    "overlap": "8d69b79a4e5454697c9d45189cb71190943e47f03a076c6196eac415f992e644",
    "storage order": "18d8c32479d7bead962b0d7c198aa36567e40b71f19cc8e54bf60efb4d3d2f15",
}
FINGERPRINT = "8e759d7c19e444d0511735501c3133ada1ff0a9547c951899603106c11bca90b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("set"), unique_groups(FILES))


@pytest.mark.parametrize("case", CASES)
def test_the_order_is_the_one_of_format_version_1(folder: Path, case: str) -> None:
    digest = hashlib.sha256()
    with ParquetLoader(folder, **CASES[case]) as loader:
        while loader.epoch < 4:
            for batch in loader:
                digest.update(batch.epoch.to_bytes(4, "little") + batch.tokens.astype("<i4").tobytes())
    assert digest.hexdigest() == GOLDEN[case]


def test_the_fingerprint_is_the_one_of_format_version_1(folder: Path) -> None:
    with ParquetLoader(folder, seq_len=1, lanes=1) as loader:
        assert loader.index.fingerprint == FINGERPRINT
