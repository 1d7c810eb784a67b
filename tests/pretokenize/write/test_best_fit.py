"""Which pieces share a row, and that a stream of documents becomes the same rows whatever batches it comes in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize.tokenizers.base import TokenBatch
from parquet_loader.pretokenize.write.best_fit import cut, pack
from parquet_loader.pretokenize.write.manifest import Packing
from parquet_loader.pretokenize.write.packer import (
    Buffer,
    PackedRows,
    Packer,
    check_packing,
    pieces_from_bytes,
    pieces_to_bytes,
)

Document = tuple[int, ...]


def best_fit_by_hand(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """The rows' pieces, without any index: every row is looked at for every piece."""
    rows: list[list[int]] = []
    for piece in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        rooms = [row_tokens - sum(lengths[each] for each in row) for row in rows]
        fitting = [room for room in rooms if room >= lengths[piece]]
        if fitting:
            rows[rooms.index(min(fitting))].append(piece)
        else:
            rows.append([piece])
    return rows


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=60))))
def test_rows_are_as_full_as_best_fit_makes_them_and_numbered_by_their_first_pieces(
    case: tuple[int, list[int]],
) -> None:
    row_tokens, lengths = case
    rows = pack(np.array(lengths, np.int64), row_tokens).tolist()
    fill = sorted(sum(lengths[at] for at in np.flatnonzero(np.array(rows) == row)) for row in set(rows))
    assert fill == sorted(sum(lengths[at] for at in row) for row in best_fit_by_hand(lengths, row_tokens))
    assert not fill or fill[-1] <= row_tokens
    firsts = [rows.index(row) for row in range(len(set(rows)))]
    assert firsts == sorted(firsts)


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 20))
def test_only_documents_longer_than_a_row_are_cut(lengths: list[int], row_tokens: int) -> None:
    pieces = iter(cut(np.array(lengths, np.int64), row_tokens).tolist())
    for length in lengths:
        whole, rest = divmod(length, row_tokens)
        assert [next(pieces) for _ in range(whole)] == [row_tokens] * whole
        assert not rest or next(pieces) == rest
    assert list(pieces) == []


def documents_of(lengths: Sequence[int]) -> list[Document]:
    """Documents of which every token is another one."""
    ends = np.cumsum([0, *lengths]).tolist()
    return [tuple(range(start, start + length)) for start, length in zip(ends, lengths, strict=False)]


def batch_of(documents: Sequence[Document]) -> TokenBatch:
    tokens = np.array([token for document in documents for token in document], np.int32)
    lengths = np.array([len(document) for document in documents], np.int64)
    return TokenBatch(tokens=tokens, lengths=lengths, aligned={"negative": -tokens.astype(np.int64)})


def buffers_of(packer: Packer, documents: Sequence[Document], batches: Sequence[int]) -> list[Buffer]:
    """What becomes of documents that come in batches of these sizes, again and again."""
    made: list[Buffer] = []
    at = 0
    while at < len(documents):
        for size in batches:
            made += packer.add(batch_of(documents[at : at + size]))
            at += size
    return [*made, *packer.finish()]


def rows_in(batches: Sequence[TokenBatch]) -> list[tuple[list[int], list[int]]]:
    """Tokens and the numbers of their documents, row after row; other aligned columns go with the tokens."""
    rows = []
    for batch in batches:
        np.testing.assert_array_equal(batch.aligned["negative"], -batch.tokens.astype(np.int64))
        numbers, start = batch.aligned["document_ids"], 0
        for length in batch.lengths.tolist():
            rows.append((batch.tokens[start : start + length].tolist(), numbers[start : start + length].tolist()))
            start += length
        assert start == len(batch.tokens)
    return rows


def rows_of(buffers: Sequence[Buffer]) -> list[tuple[list[int], list[int]]]:
    return rows_in([buffer.rows for buffer in buffers])


streams = st.tuples(
    st.integers(1, 30),  # seq_len
    st.integers(1, 8),  # rows that the buffer holds
    st.sampled_from(["carry", "pad"]),
    st.lists(st.integers(0, 70), min_size=1, max_size=120),
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
)


def packing_of(seq_len: int, rows: int, tail: str) -> Packing:
    return Packing(seq_len=seq_len, tail=tail, buffer_tokens=seq_len * rows)


@settings(max_examples=200)
@given(streams)
def test_every_piece_is_in_one_row_and_no_document_that_fits_is_cut(
    stream: tuple[int, int, str, list[int], list[int]],
) -> None:
    seq_len, rows, tail, lengths, batches = stream
    documents = documents_of(lengths)
    buffers = buffers_of(Packer(packing_of(seq_len, rows, tail)), documents, batches)
    found = []
    for tokens, numbers in rows_of(buffers):
        assert 1 <= len(tokens) <= seq_len
        borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(tokens)]
        assert [numbers[at] for at in borders[:-1]] == list(range(len(borders) - 1))
        found += [tuple(tokens[start:end]) for start, end in itertools.pairwise(borders)]
    pieces = [each[at : at + seq_len] for each in documents for at in range(0, len(each), seq_len)]
    assert sorted(found) == sorted(pieces)
    assert sum(buffer.documents for buffer in buffers) == len(documents)
    assert sum(buffer.tokens for buffer in buffers) == sum(lengths)
    assert sum(buffer.cut_documents for buffer in buffers) == sum(length > seq_len for length in lengths)


@given(streams, st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_rows_do_not_depend_on_the_batches_that_documents_come_in(
    stream: tuple[int, int, str, list[int], list[int]], others: list[int]
) -> None:
    seq_len, rows, tail, lengths, batches = stream
    packing, documents = packing_of(seq_len, rows, tail), documents_of(lengths)
    made = [rows_of(buffers_of(Packer(packing), documents, sizes)) for sizes in (batches, others)]
    assert made[0] == made[1]


@settings(max_examples=30)
@given(streams)
def test_a_run_goes_on_from_any_row(stream: tuple[int, int, str, list[int], list[int]]) -> None:
    seq_len, rows, tail, lengths, batches = stream
    packing, documents = packing_of(seq_len, rows, tail), documents_of(lengths)
    buffers = buffers_of(Packer(packing), documents, batches)
    expected = rows_of(buffers)
    for written in range(len(expected) + 1):
        done = 0

        def on_buffer(buffer: Buffer) -> None:
            nonlocal done
            done += buffer.documents

        first = PackedRows(packing, on_buffer)
        assert rows_in([*first.add(batch_of(documents)), *first.finish()]) == expected
        first.take(written)
        carried = pieces_from_bytes(pieces_to_bytes(first.carried), "carried")
        again = PackedRows(packing, lambda _: None, rows=first.rows, carried=carried)
        rest = [*again.add(batch_of(documents[done:])), *again.finish()]
        assert rows_in(rest) == expected[written:]


def test_carried_documents_fill_rows_that_would_be_far_from_full() -> None:
    lengths = [60, 60, 30, 30] * 10  # a buffer of 60 and 60 has no 30 for them

    def padding(tail: str) -> int:
        buffers = buffers_of(Packer(Packing(seq_len=91, tail=tail, buffer_tokens=120)), documents_of(lengths), [3])
        return 91 * sum(len(each.rows.lengths) for each in buffers) - sum(lengths)

    assert padding("carry") < padding("pad") / 2


def test_documents_wait_for_one_buffer_at_most() -> None:
    documents = documents_of([60] * 50)  # of which no two fit in a row
    packer = Packer(Packing(seq_len=100, tail="carry", buffer_tokens=600))
    buffers = buffers_of(packer, documents, [1])
    assert max(len(each.carried.lengths) for each in buffers) == 10
    assert len(rows_of(buffers)) == 50


@pytest.mark.parametrize(("seq_len", "buffer_tokens", "problem"), [(0, 9, "at least 1, got 0"), (10, 9, "less than")])
def test_sizes_that_cannot_be_packed_are_refused(seq_len: int, buffer_tokens: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_packing(Packing(seq_len=seq_len, buffer_tokens=buffer_tokens))


def test_carried_pieces_that_are_damaged_are_refused() -> None:
    raw = pieces_to_bytes(batch_of(documents_of([3, 4])))
    with pytest.raises(DataError, match="Remove the folder that it is in"):
        pieces_from_bytes(raw[:-1] + bytes([raw[-1] ^ 1]), "0.parquet.carried")
