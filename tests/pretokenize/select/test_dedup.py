"""Hashes of texts, and the set of those that were seen."""

from __future__ import annotations

import numpy as np

from parquet_loader.pretokenize.select.dedup import SeenHashes, digest_function


def test_white_space_is_collapsed_and_stripped_before_hashing() -> None:
    digest = digest_function("sha256")
    assert digest(" a\u00a0\n b\t") == digest("a b") != digest("ab")
    assert len(digest("")) == 16


def test_seen_hashes_are_a_set() -> None:
    rng = np.random.default_rng(0)
    seen, reference = SeenHashes(), set()
    for _ in range(60):
        digests = rng.integers(0, 1 << 64, (500, 2), dtype=np.uint64)
        digests[::7] = digests[3]
        digests[5] = 0
        expected = []
        for each in map(tuple, digests.tolist()):
            expected.append(each not in reference)
            reference.add(each)
        assert seen.add(digests).tolist() == expected
    assert len(seen) == len(reference)
    assert 21 <= seen.nbytes / len(seen) <= 32
