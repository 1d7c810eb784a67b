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
    "plain": "ccaf438bdc973a9d358ceb8ef1d841b753a88903b6022f7cefebda01d2c652cc",
    "one lane": "6d86e8c209583a7672577c600433c4cac04069c569c76b3ef89f9ab09f294cf9",
    "many lanes": "c42adc96064bac304403bbe2a0df58a85e932677e5f23af2f6ed3b19f141b592",
    "window of one": "fb9887f3784cda915962f236a9a7723f3217aafa4f62824fa276e856d8a9b78f",
    "with eos": "1e304496c7a82e93cea520b4c653b34e108c789990b8fa9d9107ab5ff49d4e86",
    "overlap": "9d861a5b7ee0fd58386ed1c4d18b9e8ddec0ad85cbef77e55d6a370b6599c28b",
    "storage order": "18d8c32479d7bead962b0d7c198aa36567e40b71f19cc8e54bf60efb4d3d2f15",
}
FINGERPRINT = "8e759d7c19e444d0511735501c3133ada1ff0a9547c951899603106c11bca90b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("set"), unique_groups(FILES))


@pytest.mark.parametrize("case", CASES)
def test_the_order_is_the_one_of_format_version_2(folder: Path, case: str) -> None:
    digest = hashlib.sha256()
    with ParquetLoader(folder, **CASES[case]) as loader:
        while loader.epoch < 4:
            for batch in loader:
                digest.update(batch.epoch.to_bytes(4, "little") + batch.tokens.astype("<i4").tobytes())
    assert digest.hexdigest() == GOLDEN[case]


def test_the_fingerprint_is_the_one_of_format_version_1(folder: Path) -> None:
    with ParquetLoader(folder, seq_len=1, lanes=1) as loader:
        assert loader.index.fingerprint == FINGERPRINT
