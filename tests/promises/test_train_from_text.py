"""Training begins while text is being tokenized; both are killed in the middle, and go on as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import subprocesses
from growing_sets import digest, take

from parquet_loader import ParquetLoader
from parquet_loader.pretokenize import PretokenizeOptions, pretokenize

sys.path.insert(0, str(Path(__file__).parents[1] / "pretokenize" / "sources"))

from hub_server import serving

TEXTS = [f"document {number}: " + "words and more " * (number % 7) + "." for number in range(3000)]
# A file is a row group, so that there are hundreds of them, and time for a kill between the first and the last.
SIZES: dict[str, Any] = {"tokenizer": "bytes", "row_group_tokens": 700, "file_tokens": 700, "batch_bytes": 700}
SEQ_LEN, LANES, WINDOW = 64, 6, 3
STEPS, KILL_AT = 500, 13

TRAINER = """
    import hashlib, json, logging, os, pickle, signal, sys
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np

    from parquet_loader import ParquetLoader, merge_checkpoints
    from parquet_loader.pretokenize import PretokenizeOptions, background

    logging.disable()  # of what is waited for
    job, options, shape = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    ranks, steps, kill_at = map(int, sys.argv[4:])
    saved = job / "checkpoint"
    with background(PretokenizeOptions(**options)) as writer, ExitStack() as stack:
        loaders = [
            stack.enter_context(ParquetLoader(writer.folder, follow=True, rank=rank, world_size=ranks, **shape))
            for rank in range(ranks)
        ]
        step = 0
        if saved.exists():
            step, checkpoint = pickle.loads(saved.read_bytes())
            for loader in loaders:
                loader.resume(checkpoint)
        log = stack.enter_context((job / "rows.jsonl").open("a", buffering=1))
        while step < steps:
            for batches in zip(*loaders):
                rows = np.concatenate([batch.tokens for batch in batches])
                log.write(json.dumps([step, hashlib.sha256(rows.tobytes()).hexdigest()]) + "\\n")
                step += 1
                if step % 10 == 0:
                    checkpoint = merge_checkpoints([loader.checkpoint() for loader in loaders])
                    (job / "new").write_bytes(pickle.dumps((step, checkpoint)))
                    (job / "new").replace(saved)
                if step == kill_at:
                    print("written:", writer.done, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == steps:
                    break
        print("written:", writer.done, "epoch", loaders[0].epoch)
"""


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Digests of the batches over a set of these texts that is finished."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "in.jsonl").write_text("".join(map(line, TEXTS)))
    pretokenize(
        PretokenizeOptions(
            inputs=(str(folder / "in.jsonl"),), output=str(folder / "set"), publish="as-finished", **SIZES
        )
    )
    with ParquetLoader(folder / "set", follow=True, **shape()) as loader:
        return [digest([rows]) for rows in take([loader], STEPS)]


def shape() -> dict[str, Any]:
    return {"seq_len": SEQ_LEN, "lanes": LANES, "window": WINDOW, "vocab_size": 257}


def line(text: str) -> str:
    return json.dumps({"text": text}) + "\n"


# --- the three kinds of text


def a_folder(stack: ExitStack, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Lines of text, and then JSON lines."""
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:1500]))
    (folder / "text" / "b.jsonl").write_text("".join(map(line, TEXTS[1500:])))
    return {"inputs": [str(folder / "text")]}, {}


def a_stream_of_the_hub(stack: ExitStack, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """With duplicates, in one file and across files."""
    texts = [*TEXTS[:1500], *TEXTS[100:200]], [*TEXTS[1400:], *TEXTS[:50]]
    files = {f"{number}.jsonl": "".join(map(line, part)).encode() for number, part in enumerate(texts)}
    endpoint = stack.enter_context(serving("some/set", files))
    environment = {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "USE_TORCH": "0",
        "USE_JAX": "0",
    }
    return {"source": "hf", "dataset": "some/set", "dedup": True}, environment


def a_source_of_ones_own(stack: ExitStack, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    (folder / "own.py").write_text(
        "from parquet_loader.pretokenize import Record, Source\n"
        f"TEXTS = {TEXTS!r}\n"
        "class Own(Source):\n"
        "    def __init__(self, options):\n"
        "        pass\n"
        "    def records(self, cursor=None):\n"
        "        for n in range(cursor[0] if cursor else 0, len(TEXTS)):\n"
        "            yield Record(text=TEXTS[n], origin=f'text {n}', cursor=(n + 1,))\n"
        "    def fingerprint(self):\n"
        "        return {'texts': len(TEXTS)}\n"
    )
    return {"source": "own:Own"}, {"PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[2]}"}


@pytest.mark.parametrize("kind", [a_folder, a_stream_of_the_hub, a_source_of_ones_own])
def test_text_is_trained_on_while_it_is_tokenized_and_both_are_killed_and_resumed(
    kind: Any, wanted: list[str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        text, environment = kind(stack, tmp_path)
        options = json.dumps({"output": str(tmp_path / "set"), **SIZES, **text})

        def life(ranks: int, kill_at: int) -> Any:
            return subprocesses.start(
                TRAINER, tmp_path, options, json.dumps(shape()), ranks, STEPS, kill_at, environment=environment
            )

        for ranks, kill_at in ((2, KILL_AT), (3, 2 * KILL_AT)):
            killed = life(ranks, kill_at)
            out, err = killed.communicate(timeout=subprocesses.PROGRAM_SECONDS)
            assert (killed.returncode, out, err) == (-signal.SIGKILL, "written: False\n", "")
        assert subprocesses.finish(life(1, -1)) == "written: True epoch 1\n"
    seen = list(read_log(tmp_path / "rows.jsonl"))
    assert len(seen) > STEPS  # some were read twice
    assert {step for step, _ in seen} == set(range(STEPS))
    assert [(step, wanted[step]) for step, _ in seen] == seen


def read_log(path: Path) -> Iterator[tuple[int, str]]:
    for entry in path.read_text().splitlines():
        step, rows = json.loads(entry)
        yield step, rows
