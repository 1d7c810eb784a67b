"""The loaders that `tools/benchmark/benchmark.py` compares, each as its own documentation recommends for packed tokens.

    convert(files, folder)      once: from tokenized Parquet to what the loader reads
    open(folder, state)         an endless iterator of batches, shape (lanes, seq_len), shuffled, from a state on
    state()                     what must be saved so that another process goes on after the last batch
    close()

Every class is as short as its library allows, so that readers can judge whether a library is used well: corrections
are welcome. Where a library leaves the packing of documents to its user it gets `pack`; where it leaves keeping the
position to its user, the class keeps what makes a resume exact, if anything does.
"""

# ruff: noqa: D102  # what the methods do is said once, in `Loader`

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import math
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmark_data import Tokens, documents, packed_rows

_READ_DOCUMENTS = 1000  # that `datasets` gives at a time: its default
_SHUFFLE_BUFFER = 1000  # documents, where a library shuffles in a buffer; it is the default of `datasets`


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every loader is asked for.

    Attributes:
        column: the token column of the files.
        vocab: token ids are below it.
        tokens: of the set.
        seq_len, lanes: a batch is of ``lanes`` rows of ``seq_len`` tokens.
        window: row groups that parquet_loader shuffles together.
        seed: of the shuffle.
        threads: of parquet_loader, and of pyarrow's bare decoding.
        workers: worker processes, where a library works through PyTorch's DataLoader; 0 is in the process itself.
        epochs: that will be taken, where that is known beforehand.
    """

    column: str
    vocab: int
    tokens: int
    seq_len: int = 2048
    lanes: int = 64
    window: int = 16
    seed: int = 0
    threads: int = 1
    workers: int = 0
    epochs: float | None = None

    @property
    def raw_dtype(self) -> type[np.unsignedinteger[Any]]:
        """Of a raw file of tokens."""
        return np.uint16 if self.vocab <= 1 << 16 else np.uint32


class Loader:
    """What `tools/benchmark/benchmark.py` needs of a loader.

    Attributes:
        title: for tables.
        modules: imported before any clock starts; a loader whose modules are missing is left out.
        packages: whose versions are reported.
        converts: whether it reads files of its own; if not, ``folder`` is the source's.
        resumes: whether there is anything to resume.
        whole_epochs: whether it works so far ahead that parts of an epoch cannot be told apart.
        epoch: how many epochs have ended.
    """

    title: str
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    converts = True
    resumes = True
    whole_epochs = False

    def __init__(self, options: Options) -> None:
        self.options = options
        self.epoch = 0

    @classmethod
    def missing(cls) -> str:
        """What this loader needs and is not here; "" if all is."""
        for module in cls.modules:
            try:
                found = importlib.util.find_spec(module.split(".")[0])
            except (ImportError, ValueError):
                found = None
            if found is None:
                return f"{module.split('.')[0]} is not installed"
        return ""

    def prepare(self) -> None:
        """What is not measured: imports."""
        for module in self.modules:
            importlib.import_module(module)
        pa.array([0]).to_numpy()  # imports pandas, where it is installed: a third of a second

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        """Write what `open` reads into an existing folder."""
        raise NotImplementedError

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        """Batches without end: NumPy arrays or tensors of integers, shape ``(lanes, seq_len)``."""
        raise NotImplementedError

    def state(self) -> Any:
        """To be pickled."""
        return None

    def close(self) -> None:
        """End threads and processes."""

    def report(self) -> dict[str, Any]:
        """Anything more that helps to understand the figures."""
        return {}


def pack(source: Iterator[Tokens], rest: Tokens, lanes: int, seq_len: int) -> Iterator[tuple[Tokens, Tokens]]:
    """Tokens of many documents end to end, cut into batches: (batch, the tokens left over after it)."""
    size = lanes * seq_len
    for tokens in source:
        rest = np.concatenate((rest, tokens))
        while len(rest) >= size:
            batch, rest = rest[:size].reshape(lanes, seq_len), rest[size:]
            yield batch, rest


# ── parquet_loader ───────────────────────────────────────────────────────────────────────────────────────────────


class ParquetDefault(Loader):
    """parquet_loader on the files as they are."""

    title = "parquet_loader"
    modules: tuple[str, ...] = ("parquet_loader",)
    packages = ("parquet_loader", "pyarrow", "numpy")
    converts = False
    whole_epochs = True
    keywords: Mapping[str, Any] = {}

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        from parquet_loader import ParquetLoader

        options = self.options
        self.loader = ParquetLoader(
            folder,
            column=options.column,
            seq_len=options.seq_len,
            lanes=options.lanes,
            window=options.window,
            seed=options.seed,
            threads=options.threads,
            epochs=None if options.epochs is None else math.ceil(options.epochs),
            **self.keywords,
        )
        if state is not None:
            self.loader.load_state_dict(state)
        while True:
            for batch in self.loader:
                yield batch.tokens
            self.epoch += 1

    def state(self) -> Any:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()

    def report(self) -> dict[str, Any]:
        """Among them ``tokens_decoded``, which tells how far it has read ahead."""
        return self.loader.stats()


class ParquetProcesses(ParquetDefault):
    """The same, decoded by processes of the loader's own, one a core."""

    title = "parquet_loader, processes"

    @property
    def keywords(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"processes": self.options.threads}


class ParquetPretokenized(ParquetDefault):
    """parquet_loader on files as `tools/pretokenize.py` writes them (here: rewritten by the same writer)."""

    title = "parquet_loader, its own layout"
    modules = ("parquet_loader", "parquet_loader.pretokenize.write.writer")
    converts = True

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        from parquet_loader.pretokenize.tokenizers.huggingface import TokenBatch, TokenizerInfo
        from parquet_loader.pretokenize.write.folder import OutputFolder
        from parquet_loader.pretokenize.write.manifest import Encoding
        from parquet_loader.pretokenize.write.writer import SetWriter

        info = TokenizerInfo(name="none", sha256="0" * 64, vocab_size=self.options.vocab, eos_token=None, eos_id=None)
        encoding = Encoding(column="tokens", dtype=info.dtype.name, tokenizer=info, eos_appended=False)
        output = OutputFolder(str(folder))
        # As many row groups as the source has, so that both are shuffled alike.
        groups = sum(pq.ParquetFile(file).num_row_groups for file in files)
        sizes = {"row_group_tokens": max(1, self.options.tokens // groups), "file_tokens": 1 << 24}
        with SetWriter(output, encoding, **sizes) as writer:
            for tokens, lengths in documents(files, self.options.column):
                writer.add(TokenBatch(tokens=tokens.astype(info.dtype, copy=False), lengths=lengths))
            writer.finish()

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        self.options = replace(self.options, column="tokens")
        return super().open(folder, state)


class ParquetArrow(ParquetDefault):
    """parquet_loader on uncompressed Arrow files: a record batch for each row group."""

    title = "parquet_loader, Arrow"
    converts = True

    @property
    def keywords(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Parquet's statistics tell the vocabulary, and Arrow does not."""
        return {"vocab_size": self.options.vocab}

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        for file in files:
            source = pq.ParquetFile(file)
            with pa.OSFile(str(folder / f"{file.stem}.arrow"), "wb") as sink:
                schema = source.schema_arrow
                with pa.ipc.new_file(sink, schema) as writer:
                    for group in range(source.num_row_groups):
                        writer.write_table(source.read_row_group(group).combine_chunks())


class ParquetRaw(ParquetDefault):
    """parquet_loader on raw shards of two-byte ids, documents ended by an id that is in none."""

    title = "parquet_loader, raw"
    converts = True
    keywords: Mapping[str, Any] = {"raw_dtype": "uint16", "eos_id": 65_535}

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        for file in files:
            with (folder / f"{file.stem}.bin").open("wb") as sink:
                for tokens, lengths in documents([file], self.options.column):
                    ends = np.cumsum(lengths)
                    np.insert(tokens.astype(np.uint16), ends, 65_535).tofile(sink)

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        self.options = replace(self.options, column=None)  # type: ignore[arg-type]
        return super().open(folder, state)


# ── Hugging Face datasets ────────────────────────────────────────────────────────────────────────────────────────


class DatasetsMap(Loader):
    """`datasets`, map-style: an Arrow copy that is memory-mapped, a global shuffle of documents.

    https://huggingface.co/docs/datasets/process#shuffle and .../use_with_numpy: every document becomes an array of its
    own. The position is kept by hand: the number of documents taken, and the tokens that wait to be packed.
    """

    title = "datasets, map-style"
    format = "numpy"
    modules = ("datasets",)
    packages = ("datasets",)

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        import datasets

        names = [str(file) for file in files]
        cache = folder / "cache"
        copy = datasets.Dataset.from_parquet(names, columns=[self.options.column], cache_dir=str(cache))
        copy.save_to_disk(folder / "arrow")
        for file in sorted(cache.rglob("*.arrow")):  # one copy is enough, and only one is counted
            file.unlink()

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        import datasets

        options = self.options
        self.done, self.rest = 0, np.empty(0, np.int32)
        if state is not None:
            self.epoch, self.done, self.rest = state
        whole = datasets.load_from_disk(str(folder / "arrow")).with_format(self.format)
        while True:
            shuffled = whole.shuffle(seed=options.seed + self.epoch, keep_in_memory=True)
            if self.done:
                shuffled = shuffled.skip(self.done)
            for batch, rest in pack(self._tokens(shuffled), self.rest, options.lanes, options.seq_len):
                self.rest = rest
                yield batch
            self.epoch, self.done = self.epoch + 1, 0

    def _tokens(self, shuffled: Any) -> Iterator[Tokens]:
        for batch in shuffled.iter(batch_size=_READ_DOCUMENTS):
            arrays = batch[self.options.column]
            self.done += len(arrays)
            yield np.concatenate(arrays)

    def state(self) -> Any:
        return self.epoch, self.done, self.rest


class DatasetsArrow(DatasetsMap):
    """`datasets`, map-style, by hand: Arrow tables of documents, whose tokens lie end to end already.

    https://huggingface.co/docs/datasets/use_with_pyarrow: several times cheaper than the format "numpy".
    """

    title = "datasets, map-style, Arrow tables"
    format = "arrow"

    def _tokens(self, shuffled: Any) -> Iterator[Tokens]:
        for table in shuffled.iter(batch_size=_READ_DOCUMENTS):
            self.done += len(table)
            yield tokens_of(table, self.options.column)


class DatasetsStreaming(Loader):
    """`datasets`, streaming the Parquet as it is, with the default shuffle buffer.

    https://huggingface.co/docs/datasets/stream#save-a-dataset-checkpoint-and-resume-iteration, which says that a
    shuffle buffer's content is lost on resume. At the end of an epoch it sleeps for 5 seconds (datasets 5.2), which is
    much of the time of a small run, and no CPU.
    """

    title = "datasets, streaming"
    modules = ("datasets", "torch")  # which it imports, if it is there
    packages = ("datasets",)
    converts = False

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        import datasets

        options = self.options
        files = [str(file) for file in sorted(folder.rglob("*.parquet"))]
        stream = datasets.load_dataset(
            "parquet", data_files=files, columns=[options.column], split="train", streaming=True
        )
        shuffled = stream.shuffle(seed=options.seed, buffer_size=_SHUFFLE_BUFFER).with_format("arrow")
        self.stream, self.rest = shuffled, np.empty(0, np.int32)
        if state is not None:
            self.epoch, position, self.rest = state
            shuffled.load_state_dict(position)
        while True:
            shuffled.set_epoch(self.epoch)
            tables = shuffled.iter(batch_size=_READ_DOCUMENTS)
            tokens = (tokens_of(table, options.column) for table in tables)
            for batch, rest in pack(tokens, self.rest, options.lanes, options.seq_len):
                self.rest = rest
                yield batch
            self.epoch += 1

    def state(self) -> Any:
        return self.epoch, self.stream.state_dict(), self.rest


def tokens_of(table: Any, column: str) -> Tokens:
    """The tokens of an Arrow table's documents, end to end."""
    return table[column].combine_chunks().flatten().to_numpy()  # type: ignore[no-any-return]


# ── MosaicML Streaming ───────────────────────────────────────────────────────────────────────────────────────────


class MosaicStreaming(Loader):
    """MosaicML Streaming: MDS shards of packed rows.

    Rows and not documents, because Streaming does not pack: what trains on it (llm-foundry's ``ConcatTokensDataset``)
    concatenates while converting and writes rows of the sequence length. Uncompressed, its default shuffle.
    """

    title = "MosaicML Streaming"
    modules = ("streaming",)
    packages = ("streaming-community", "mosaicml-streaming", "torch")

    def prepare(self) -> None:
        _stand_in_for_torchvision()
        super().prepare()

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        from streaming import MDSWriter

        options = self.options
        with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:int32:{options.seq_len}"}) as writer:
            for rows in packed_rows(files, options.column, options.seq_len):
                for row in rows:
                    writer.write({"tokens": row})

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        from streaming import StreamingDataLoader, StreamingDataset

        options = self.options
        dataset = StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=options.seed, batch_size=options.lanes)
        self.loader = StreamingDataLoader(
            dataset, batch_size=options.lanes, num_workers=options.workers, drop_last=True
        )
        if state is not None:
            self.loader.load_state_dict(state)
        while True:
            for batch in self.loader:
                yield batch["tokens"]
            self.epoch += 1

    def state(self) -> Any:
        return self.loader.state_dict()


# ── litdata ──────────────────────────────────────────────────────────────────────────────────────────────────────


class LitData(Loader):
    """litdata: its chunks of tokens, cut to rows by ``TokensLoader``.

    https://lightning.ai/docs/litdata, "LLM Pre-training": `optimize` with chunks of thousands of rows.
    """

    title = "litdata TokensLoader"
    modules = ("litdata",)
    packages = ("litdata", "torch")

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        import litdata

        litdata.optimize(
            fn=functools.partial(litdata_documents, column=self.options.column),
            inputs=[str(file) for file in files],
            output_dir=str(folder),
            chunk_size=self.options.seq_len * 4096,
            item_loader=litdata.TokensLoader(block_size=self.options.seq_len),
            num_workers=1,
            reorder_files=False,
        )

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        import litdata

        options = self.options
        dataset = litdata.StreamingDataset(
            str(folder),
            item_loader=litdata.TokensLoader(block_size=options.seq_len),
            shuffle=True,
            drop_last=True,
            seed=options.seed,
        )
        self.loader = litdata.StreamingDataLoader(
            dataset,
            batch_size=options.lanes,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            drop_last=True,
        )
        if state is not None:
            self.loader.load_state_dict(state)
        while True:
            yield from self.loader
            self.epoch += 1

    def state(self) -> Any:
        return self.loader.state_dict()


def litdata_documents(file: str, column: str) -> Iterator[Any]:
    """The documents of a file as tensors."""
    import torch

    for tokens, lengths in documents([Path(file)], column):
        yield from torch.split(torch.from_numpy(tokens.astype(np.int32)), lengths.tolist())


# ── LanceDB ──────────────────────────────────────────────────────────────────────────────────────────────────────


class LanceDocuments(Loader):
    """LanceDB's ``StreamingDataset`` on a table of documents, packed by its ``pack_sequences``.

    https://docs.lancedb.com/training: every document shuffled, an EOS between documents (here 0, which is an id like
    any other). No worker processes: it reads on threads of its own, starts its workers anew for every epoch, and calls
    forking experimental. The tokens that its estimate leaves out of an epoch are those that fill no block.
    """

    title = "LanceDB, documents"
    modules = ("lancedb", "lancedb.streaming")
    packages = ("lancedb", "torch")

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        self._create(folder, (batch for file in files for batch in self._batches(file)))

    def _batches(self, file: Path) -> Iterator[Any]:
        for batch in pq.ParquetFile(file).iter_batches(columns=[self.options.column]):
            yield pa.RecordBatch.from_arrays(batch.columns, ["tokens"])

    def _create(self, folder: Path, batches: Iterator[Any]) -> None:
        import lancedb

        first = next(batches)
        lancedb.connect(str(folder)).create_table("set", itertools.chain([first], batches), schema=first.schema)

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        import lancedb
        from lancedb.streaming import StreamingDataLoader, StreamingDataset

        options = self.options
        table = lancedb.connect(str(folder)).open_table("set")
        self.epoch, position = state or (0, None)
        while True:
            self.dataset = StreamingDataset(
                table, shuffle_seed=options.seed, epoch=self.epoch, columns=["tokens"], **self._as(table)
            )
            if position is not None:
                self.dataset.load_state_dict(position)
                position = None
            for batch in StreamingDataLoader(self.dataset, batch_size=options.lanes):
                rows = self._rows(batch)
                if len(rows) == options.lanes:  # it cannot drop a last batch that is not full
                    yield rows
            self.epoch += 1

    def _as(self, table: Any) -> dict[str, Any]:
        length = self.options.seq_len
        blocks = (self.options.tokens + table.count_rows()) // length
        return {"pack_sequences": length, "eos_id": 0, "pad_id": 0, "blocks_per_epoch": blocks}

    def _rows(self, batch: Any) -> Any:
        return batch["input_ids"]

    def state(self) -> Any:
        return self.epoch, self.dataset.state_dict()


class LanceRows(LanceDocuments):
    """The same on a table of packed rows, by a transform to tensors: much cheaper, and shuffles rows."""

    title = "LanceDB, rows"

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        length = self.options.seq_len
        self._create(
            folder,
            (
                pa.RecordBatch.from_arrays([pa.FixedSizeListArray.from_arrays(rows.ravel(), length)], ["tokens"])
                for rows in packed_rows(files, self.options.column, length)
                if len(rows)
            ),
        )

    def _as(self, table: Any) -> dict[str, Any]:
        return {"transform": lance_tensors}

    def _rows(self, batch: Any) -> Any:
        return batch


def lance_tensors(batch: Any) -> Any:
    """Rows of a record batch as a tensor."""
    import torch

    column = batch.column(0)
    return torch.from_numpy(column.flatten().to_numpy().reshape(len(column), -1).copy())


# ── Grain ────────────────────────────────────────────────────────────────────────────────────────────────────────


class GrainArrayRecord(Loader):
    """Grain on ArrayRecord files of packed rows: random access, a global shuffle.

    https://google-grain.readthedocs.io, "Dataset basics"; records are to be written with ``group_size:1`` for random
    access. Two departures from its defaults, both in its favour: no compression (brotli), and no threads to read ahead
    (16), which take several times the CPU where files are in memory.
    """

    title = "Grain, ArrayRecord"
    modules = ("grain", "array_record.python.array_record_module")
    packages = ("grain", "array-record")

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        options = self.options
        writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1,uncompressed")
        for rows in packed_rows(files, options.column, options.seq_len):
            for row in rows:
                writer.write(row.tobytes())
        writer.close()

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        import grain

        options = self.options
        source = grain.sources.ArrayRecordDataSource([str(folder / "rows.array_record")])
        self.epoch, position = state or (0, None)
        while True:
            dataset = (
                grain.MapDataset.source(source)
                .shuffle(seed=options.seed + self.epoch)
                .map(lambda record: np.frombuffer(record, np.int32))
                .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
                .batch(options.lanes, drop_remainder=True)
            )
            self.iterator = iter(dataset)
            if position is not None:
                self.iterator.set_state(position)
                position = None
            yield from self.iterator
            self.epoch += 1

    def state(self) -> Any:
        return self.epoch, self.iterator.get_state()


class GrainParquet(Loader):
    """Grain on the Parquet as it is: its Parquet source, window shuffle and concat-then-split packing."""

    title = "Grain, Parquet"
    modules = ("grain", "grain.experimental")
    packages = ("grain",)
    converts = False

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        from grain import experimental

        options = self.options
        files = [str(file) for file in sorted(folder.rglob("*.parquet"))]
        self.epoch, position = state or (0, None)
        while True:
            seed = options.seed + self.epoch
            source = experimental.ParquetIterDataset(files)
            mixed = experimental.WindowShuffleIterDataset(source, window_size=_SHUFFLE_BUFFER, seed=seed)
            packed = experimental.ConcatThenSplitIterDataset(mixed, length_struct={options.column: options.seq_len})
            self.iterator = iter(packed.batch(options.lanes, drop_remainder=True))
            if position is not None:
                self.iterator.set_state(position)
                position = None
            for batch in self.iterator:
                yield batch[options.column]
            self.epoch += 1

    def state(self) -> Any:
        return self.epoch, self.iterator.get_state()


# ── raw files ────────────────────────────────────────────────────────────────────────────────────────────────────


class RawFile(Loader):
    """One raw file of tokens, uint16 where ids fit, memory-mapped."""

    modules = ("torch.utils.data",)
    packages = ("torch", "numpy")

    def convert(self, files: Sequence[Path], folder: Path) -> None:
        with (folder / "tokens.bin").open("wb") as out:
            for tokens, _ in documents(files, self.options.column):
                tokens.astype(self.options.raw_dtype).tofile(out)

    def mapped(self, folder: Path) -> Any:
        """All tokens, shape ``(tokens,)``."""
        return np.memmap(folder / "tokens.bin", self.options.raw_dtype, "r")


class NanoGPT(RawFile):
    """nanoGPT's ``get_batch``: rows at random places, with replacement; it knows no epochs.

    Its checkpoint keeps nothing of the data: a resumed run begins again with the seed, and with the same batches.
    (https://github.com/karpathy/nanoGPT/blob/master/train.py; only x, as other loaders give no y.)
    """

    title = "nanoGPT memmap"

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        import torch

        options = self.options
        generator = torch.Generator().manual_seed(1337 + options.seed)
        while True:
            data = self.mapped(folder)  # every time, as it does, "to avoid a memory leak"
            at = torch.randint(len(data) - options.seq_len, (options.lanes,), generator=generator)
            yield torch.stack([torch.from_numpy(data[i : i + options.seq_len].astype(np.int64)) for i in at])


class MemmapTorch(RawFile):
    """A map-style ``Dataset`` of rows of a memmap in PyTorch's ``DataLoader``, rows shuffled.

    The position is kept by hand: DataLoader has none, so a resume gives it the rest of the epoch's permutation.
    Workers stay from epoch to epoch, for which the sampler must.
    """

    title = "memmap + DataLoader"

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        options = self.options
        rows = MemmapRows(self.mapped(folder), options.seq_len)
        self.batches = 0
        if state is not None:
            self.epoch, self.batches = state
        order: list[int] = []  # the sampler
        loader: Any = DataLoader(
            rows,  # type: ignore[arg-type]  # a Dataset is what has these two methods
            batch_size=options.lanes,
            sampler=order,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            drop_last=True,
        )
        while True:
            order[:] = self._permutation(len(rows))[self.batches * options.lanes :]
            for batch in loader:
                self.batches += 1
                yield batch
            self.epoch, self.batches = self.epoch + 1, 0

    def _permutation(self, rows: int) -> list[int]:
        import torch

        generator = torch.Generator().manual_seed(self.options.seed + self.epoch)
        return torch.randperm(rows, generator=generator).tolist()

    def state(self) -> Any:
        return self.epoch, self.batches


class MemmapRows:
    """Rows of a memmap, as tensors."""

    def __init__(self, data: Any, seq_len: int) -> None:
        self.data, self.seq_len = data, seq_len

    def __len__(self) -> int:
        return len(self.data) // self.seq_len

    def __getitem__(self, row: int) -> Any:
        import torch

        return torch.from_numpy(self.data[row * self.seq_len : (row + 1) * self.seq_len].astype(np.int64))


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────


class PyarrowDecode(Loader):
    """A limit: what pyarrow alone needs to decode the files as they are, neither shuffled nor packed."""

    title = "pyarrow decode (limit)"
    packages = ("pyarrow",)
    converts = False
    resumes = False

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        paths = sorted(folder.rglob("*.parquet"))
        while True:
            for chunks in map(self._chunks, paths) if self.options.threads == 1 else self._ahead(paths):
                for chunk in chunks:
                    yield chunk.flatten().to_numpy(zero_copy_only=False)[None]
            self.epoch += 1

    def _chunks(self, path: Path) -> Iterator[Any]:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=[self.options.column], use_threads=False)
            yield from table.column(0).chunks

    def _ahead(self, paths: Sequence[Path]) -> Iterator[list[Any]]:
        """Files that threads decode, one each; as many are ready as there are threads."""
        waiting: deque[Future[list[Any]]] = deque()
        with ThreadPoolExecutor(self.options.threads) as pool:
            for path in paths:
                waiting.append(pool.submit(lambda path: list(self._chunks(path)), path))
                if len(waiting) > 2 * self.options.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


class Memcpy(Loader):
    """A limit: batches that are copied from memory."""

    title = "memcpy (limit)"
    packages = ("numpy",)
    converts = False
    resumes = False

    def prepare(self) -> None:
        super().prepare()
        self.memory = np.ones((8, self.options.lanes, self.options.seq_len), np.int32)

    def open(self, folder: Path, state: Any) -> Iterator[Any]:
        while True:
            for batch in self.memory:
                yield batch.copy()


LOADERS: dict[str, type[Loader]] = {
    "parquet_loader": ParquetDefault,
    "parquet_loader-processes": ParquetProcesses,
    "parquet_loader-layout": ParquetPretokenized,
    "parquet_loader-arrow": ParquetArrow,
    "parquet_loader-raw": ParquetRaw,
    "datasets-map": DatasetsMap,
    "datasets-arrow": DatasetsArrow,
    "datasets-streaming": DatasetsStreaming,
    "mosaicml": MosaicStreaming,
    "litdata": LitData,
    "lancedb": LanceDocuments,
    "lancedb-rows": LanceRows,
    "grain": GrainArrayRecord,
    "grain-parquet": GrainParquet,
    "nanogpt": NanoGPT,
    "memmap-torch": MemmapTorch,
    "pyarrow-decode": PyarrowDecode,
    "memcpy": Memcpy,
}


def _stand_in_for_torchvision() -> None:
    """Streaming imports torchvision for its image sets; where that does not fit the installed torch, do without."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            module = types.ModuleType(f"torchvision{name}")
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            module.VisionDataset, module.to_tensor = object, None  # type: ignore[attr-defined]
            sys.modules[module.__name__] = module
