from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader
from parquet_loader.pretokenize.tokenizers.base import TokenBatch, TokenizerInfo
from parquet_loader.pretokenize.write.folder import OutputFolder
from parquet_loader.pretokenize.write.manifest import Encoding
from parquet_loader.pretokenize.write.writer import SetWriter

LENGTHS = [3, 0, 1, 1, 2000, 0, 7]


@pytest.mark.parametrize(("vocab_size", "encoding"), [(50_257, "BYTE_STREAM_SPLIT"), (151_643, "PLAIN")])
def test_a_set_in_its_own_layout_is_read_by_others_and_by_the_loader(
    tmp_path: Path, vocab_size: int, encoding: str
) -> None:
    info = TokenizerInfo(name="none", sha256="0" * 64, vocab_size=vocab_size, eos_token=None, eos_id=None)
    ids = np.random.default_rng(0).integers(0, vocab_size, sum(LENGTHS)).astype(info.dtype)
    ids[5:30] = vocab_size - 1  # the largest id, and a run of it
    batch = TokenBatch(tokens=ids, lengths=np.array(LENGTHS, np.int64))
    header = Encoding(column="tokens", dtype=info.dtype.name, tokenizer=info, eos_appended=False)
    with SetWriter(OutputFolder(str(tmp_path)), header, row_group_tokens=1 << 20, file_tokens=1 << 24) as writer:
        writer.add(batch)
        writer.finish()
    path = tmp_path / "part-00000.parquet"
    expected = [document.tolist() for document in np.split(ids, np.cumsum(LENGTHS)[:-1])]

    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert encoding in chunk.encodings
    assert not chunk.has_dictionary_page
    assert pq.read_table(path)["tokens"].to_pylist() == expected
    assert pl.read_parquet(path)["tokens"].to_list() == expected
    rows = duckdb.sql(f"select tokens from read_parquet('{path}')").fetchall()
    assert [row[0] for row in rows] == expected
    with ParquetLoader(path, seq_len=len(ids), lanes=1, shuffle=False, epochs=1, cache_dir=tmp_path) as loader:
        assert [batch.tokens.tolist() for batch in loader] == [[ids.tolist()]]
