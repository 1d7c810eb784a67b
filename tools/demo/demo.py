#!/usr/bin/env python3
"""The main job from end to end: text, tokens, training on a mixture that begins before all is tokenized, and a killed
run that goes on as if nothing had happened.

1. Collects prose and code that every Python installation carries, trains a tokenizer, and writes the code as a set of
   tokenized Parquet.
2. Trains a small GPT on two processes while the prose is being tokenized, and kills all of them with SIGKILL at a
   random moment: the tokenizing ends as well. Goes on with four processes, training from the last checkpoint and
   tokenizing after the last finished file, kills those as well, and ends with one. It reads more prose than code at
   first. That it reads more code than prose from the middle on is decided after the first kill.
3. Tokenizes the prose once more, at once, and trains again over finished sets, on two processes and uninterrupted: the
   reference.
4. Compares every row of every batch of the two runs. They must be the same rows of the same sources in the same order,
   and so must be those that were read twice, because a kill fell between two checkpoints.

It takes two cores a few minutes and needs no network. The training loop is in demo_train.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_text import read_text, train_tokenizer, write_text
from demo_train import last_checkpoint, step_of
from tqdm import tqdm

from parquet_loader import build_index
from parquet_loader.storage.growing import GROWING_NAME, Growing

TOOLS = Path(__file__).resolve().parent
# All that the demo writes to its work folder, and all that it ever removes there.
OURS = ("text", "tokenizer.json", "tokens", "growing", "reference", "interrupted", "cache")

VOCAB_SIZE = 4096
ROW_GROUP_TOKENS, FILE_TOKENS = 10_000, 40_000
# The prose is tokenized while the model trains: text of so many documents per second, encoded so many bytes at a time.
DOCUMENTS_PER_SECOND, BATCH_BYTES = 14, 20_000
LANES, SEQ_LEN = 16, 128
STEPS, CHECKPOINT_EVERY = 260, 20
# From which token of the run on the sources have which shares. Stages begin with blocks of 64 steps.
FIRST = (0, {"prose": 0.7, "code": 0.3})
SECOND = (128 * LANES * SEQ_LEN, {"prose": 0.4, "code": 0.6})
# The interrupted run: how many processes, between which parts of all steps they are killed, and the stages they know.
LEGS = ((2, (0.15, 0.35), [FIRST]), (4, (0.60, 0.75), [FIRST, SECOND]), (1, None, [FIRST, SECOND]))

Say = Callable[[str], None]
Stages = Sequence[tuple[int, Mapping[str, float]]]
Rows = dict[tuple[int, int], list[str]]  # by step and lane, "source:digest" of the row for each time that it was read


class DemoError(Exception):
    """What ends the demo, in words for people."""


# ── text to tokens ───────────────────────────────────────────────────────────────────────────────────────────────


def prepare(work: Path) -> None:
    """Write text, tokenizer and a set of tokenized Parquet, the code, to the work folder."""
    with stage("text") as say:
        counts = write_text(work / "text")
        say("documents of Python's own: " + ", ".join(f"{count:,} of {kind}" for kind, count in counts.items()))

    with stage("tokenizer") as say:
        entries = train_tokenizer(read_text(work / "text"), VOCAB_SIZE, work / "tokenizer.json")
        say(f"byte-level BPE of {entries:,} entries")

    with stage("parquet") as say:
        say(tokenize(work, "code"))


def tokenize(work: Path, kind: str) -> str:
    """Write the set of tokenized Parquet of a kind of text; returns what it is."""
    command: list[object] = [sys.executable, TOOLS.parent / "pretokenize.py"]
    command += ["--input", work / "text" / kind, "--text-column", "text", "--output", work / "tokens" / kind]
    command += ["--tokenizer", work / "tokenizer.json", "--append-eos", "--publish", "as-finished"]
    command += ["--row-group-tokens", ROW_GROUP_TOKENS, "--file-tokens", FILE_TOKENS]
    done = subprocess.run(words(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise DemoError(f"pretokenize.py ended with status {done.returncode}")
    index = build_index(str(work / "tokens" / kind), cache_dir=work / "cache")
    return f"{kind}: {index.total_tokens:,} tokens in {len(index)} row groups of {len(index.files)} files"


def meanwhile(work: Path) -> dict[str, object]:
    """The options by which the trainer has the prose tokenized."""
    return {
        "source": "demo_text:Trickle",
        "inputs": [str(work / "text" / "prose"), str(DOCUMENTS_PER_SECOND)],
        "tokenizer": str(work / "tokenizer.json"),
        "append_eos": True,
        "row_group_tokens": ROW_GROUP_TOKENS,
        "file_tokens": FILE_TOKENS,
        "batch_bytes": BATCH_BYTES,
    }


def written(folder: Path) -> str:
    """How far the writer of a growing set has come."""
    try:
        growing = Growing.from_json((folder / GROWING_NAME).read_bytes(), GROWING_NAME)
    except FileNotFoundError:
        return "all prose is tokenized"
    return f"{growing.tokens:,} tokens of prose in {growing.files} files so far"


# ── training runs ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Training:
    """What demo_train.py reports: losses by step, those of the sources with a row in it too, and where time went."""

    losses: dict[int, float] = field(default_factory=dict)
    by_source: dict[int, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, report: Mapping[str, Any]) -> None:
        """Add a step's report; of a step that is done again, the later one counts."""
        self.losses[report["step"]] = report["loss"]
        self.by_source[report["step"]] = report["by"]
        self.seconds += report["seconds"]
        self.waited += report["waited"]

    def __str__(self) -> str:
        speed = len(self.losses) * LANES * SEQ_LEN / self.seconds
        steps = sorted(self.losses)
        middle = len(steps) // 2
        ranges = (steps[:1], steps[middle : middle + 10], steps[-10:])
        of_all = [[self.losses[step] for step in some] for some in ranges]
        parts = [f"loss {_arrows(of_all)}"]
        for name in sorted(FIRST[1], reverse=True):
            found = [[self.by_source[step][name] for step in some if name in self.by_source[step]] for some in ranges]
            parts.append(f"of {name} {_arrows(found)}")
        return (
            f"{', '.join(parts)}; {speed:,.0f} tokens/s, {self.waited / self.seconds:.1%} of the time waiting for data"
        )


def _arrows(losses: Sequence[Sequence[float]]) -> str:
    return " → ".join(f"{sum(some) / len(some):.2f}" for some in losses if some)


def train(
    work: Path,
    name: str,
    ranks: int,
    stages: Stages,
    training: Training,
    *,
    kill_at: tuple[int, float] | None = None,
) -> None:
    """Train with torchrun from the last checkpoint of this name, if there is one, to the end or to a kill.

    Args:
        work: the work folder.
        name: of the run: its folder in the work folder.
        ranks: how many processes train.
        stages: the weights of the mixture.
        training: what they report is added to it.
        kill_at: kill all of them once this step has been reported, and this part of another step has gone by.
    """
    last = last_checkpoint(work / name / "checkpoints")
    begin = step_of(last) if last else 0
    with (
        tqdm(desc=f"{name} on {ranks}", total=STEPS, initial=begin, unit="step", disable=None, leave=False) as bar,
        torchrun(work, name, ranks, stages) as (process, pids),
    ):
        for report in reports(process, pids):
            training.add(report)
            bar.set_postfix_str(f"loss {report['loss']:.2f}", refresh=False)
            bar.update()
            if kill_at is not None and report["step"] == kill_at[0]:
                time.sleep(kill_at[1] * report["seconds"])
                kill(process, pids)
        status = process.wait()
    if status != (0 if kill_at is None else -signal.SIGKILL):
        log = log_path(work, name, ranks).read_text(errors="replace")
        raise DemoError(f"training on {ranks} ranks ended with status {status}:\n{log[-4000:]}")


@contextmanager
def torchrun(work: Path, name: str, ranks: int, stages: Stages) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The torchrun process, and a list of its ranks' process ids for `reports` to fill. None outlives the block."""
    (work / name).mkdir(exist_ok=True)
    command: list[object] = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    data = {kind: str(work / "tokens" / kind) for kind in FIRST[1]}
    options = None
    if name == "interrupted":
        data["prose"], options = str(work / "growing" / "prose"), meanwhile(work)
    command += ["--nproc-per-node", ranks, TOOLS / "demo_train.py", "--out", work / name]
    command += ["--data", json.dumps(data), "--weights", json.dumps(stages)]
    command += ["--tokenize", json.dumps({"prose": options})]
    command += ["--steps", STEPS, "--checkpoint-every", CHECKPOINT_EVERY]
    command += ["--vocab-size", VOCAB_SIZE, "--lanes", LANES, "--seq-len", SEQ_LEN]
    pids: list[int] = []
    with (
        log_path(work, name, ranks).open("w") as log,
        subprocess.Popen(
            words(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(work / "cache")},
            start_new_session=True,  # Ctrl-C comes to the demo alone, which then ends them
        ) as process,
    ):
        try:
            yield process, pids
        finally:
            if process.poll() is None:
                process.terminate()  # torchrun passes it on
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    kill(process, pids)


def reports(process: subprocess.Popen[str], pids: list[int]) -> Iterator[dict[str, Any]]:
    """What rank 0 reports of each step. It ends when nobody has the pipe open any more: when all processes are gone."""
    assert process.stdout is not None
    for line in process.stdout:
        report = json.loads(line)
        if "pid" in report:
            pids.append(report["pid"])
        else:
            yield report


def kill(process: subprocess.Popen[str], pids: Sequence[int]) -> None:
    """SIGKILL to all, so that none can tidy up. torchrun goes first, or it would stop the other ranks politely."""
    for pid in (process.pid, *pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def train_interrupted(work: Path, rng: random.Random) -> Training:
    """Train in several legs on different numbers of ranks, all but the last of them killed."""
    name, training = "interrupted", Training()
    for ranks, killed, stages in LEGS:
        with stage(f"  {ranks} rank{'s' * (ranks > 1)}") as say:
            last = last_checkpoint(work / name / "checkpoints")
            say(f"resumed at step {step_of(last)}" if last else "from the start")
            if killed is None:
                train(work, name, ranks, stages, training)
                say(f"to the end; {written(work / 'growing' / 'prose')}")
                continue
            if stages != LEGS[0][2]:
                say("with the stage that was decided on")
            train(work, name, ranks, stages, training, kill_at=(random_step(rng, *killed), rng.random()))
            last = last_checkpoint(work / name / "checkpoints")
            end = max(step for step, _ in read_rows(work / name, ranks))
            say(f"killed (SIGKILL) in step {end}, the last checkpoint is of step {step_of(last) if last else 0}")
            say(written(work / "growing" / "prose"))
    return training


def random_step(rng: random.Random, begin: float, end: float) -> int:
    """A step between two parts of all, but none beside a checkpoint: there should be steps to do again."""
    steps = range(int(begin * STEPS), int(end * STEPS))
    return rng.choice([step for step in steps if 2 <= step % CHECKPOINT_EVERY < CHECKPOINT_EVERY - 2])


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────


def read_rows(folder: Path, ranks: int | str = "*") -> Rows:
    """What the ranks of a run have logged of the rows they read, put together."""
    rows: Rows = {}
    for path in folder.glob(f"rows-of-rank-*-of-{ranks}.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else a kill fell into the writing of it
                entry = json.loads(line)
                for lane, digest in enumerate(entry["rows"], entry["lane"]):
                    rows.setdefault((entry["step"], lane), []).append(digest)
    return rows


def tokens_of(rows: Rows) -> dict[str, int]:
    """How many tokens were read of each source."""
    counts = Counter(digests[0].partition(":")[0] for digests in rows.values())
    return {name: count * SEQ_LEN for name, count in sorted(counts.items())}


def digest_of(rows: Rows) -> str:
    """A digest of all rows in the order of steps and lanes, whichever ranks read them."""
    whole = hashlib.blake2b(digest_size=8)
    for (step, lane), digests in sorted(rows.items()):
        whole.update(f"{step} {lane} {digests[0]}\n".encode())
    return whole.hexdigest()


def compare(reference: Rows, interrupted: Rows) -> list[str]:
    """What is wrong with the interrupted run; nothing, if all is well."""
    wanted = {(step, lane) for step in range(STEPS) for lane in range(LANES)}
    problems = []
    for name, rows in (("uninterrupted", reference), ("interrupted", interrupted)):
        if rows.keys() != wanted:
            places = sorted(rows.keys() ^ wanted)
            problems.append(f"the {name} run has {len(places)} rows too few or too many: (step, lane) {places[0]}, ...")
        changed = sorted(place for place, digests in rows.items() if len(set(digests)) > 1)
        if changed:
            problems.append(
                f"{len(changed)} rows of the {name} run were others when read again: (step, lane) {changed[0]}, ..."
            )
    others = sorted(
        place for place in reference.keys() & interrupted.keys() if reference[place] != interrupted[place][:1]
    )
    if others:
        problems.append(f"{len(others)} rows of the runs differ: (step, lane) {others[0]}, ...")
    return problems


# ── the account ──────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def stage(label: str) -> Iterator[Say]:
    """Prints one line on a stage when it is over: what was said of it, and how long it took."""
    began = time.perf_counter()
    said: list[str] = []
    yield said.append
    print(f"{label:<14}{', '.join(said)}  ({time.perf_counter() - began:.1f} s)", flush=True)


def words(command: Sequence[object]) -> list[str]:
    return [str(word) for word in command]


def log_path(work: Path, name: str, ranks: int) -> Path:
    return work / name / f"log-of-{ranks}-ranks.txt"


def run(work: Path, seed: int) -> None:
    """The demo.

    Raises:
        DemoError: the runs differ, or one failed.
    """
    prepare(work)

    print(f"interrupted   begins as prose is tokenized; kills by chance, --seed {seed} to have them there again")
    after = train_interrupted(work, random.Random(seed))
    print(f"              {after}")

    with stage("parquet") as say:
        say(tokenize(work, "prose"))
    with stage("uninterrupted") as say:
        before = Training()
        train(work, "reference", 2, [FIRST, SECOND], before)
        say(f"{STEPS} steps on 2 ranks: {before}")

    reference, interrupted = read_rows(work / "reference"), read_rows(work / "interrupted")
    again = sum(len(digests) - 1 for digests in interrupted.values())
    shares = [", ".join(f"{share:.0%} {name}" for name, share in shares.items()) for _, shares in (FIRST, SECOND)]
    tokens = {kind: build_index(str(work / "tokens" / kind)).total_tokens for kind in FIRST[1]}
    epochs = ", ".join(f"{count / tokens[name]:.2f} of {name}" for name, count in tokens_of(reference).items())
    print(f"the mixture   {' → '.join(shares)}; epochs: {epochs}")
    print("\nDid the interrupted run read the same rows of the same sources in the same order?")
    for name, rows, training in (("uninterrupted", reference, before), ("interrupted", interrupted, after)):
        loss = training.losses[STEPS - 1]
        print(f"  {name:<14}{len(rows):,} rows, digest {digest_of(rows)}, loss of the last step {loss:.4f}")
    problems = compare(reference, interrupted)
    if problems:
        raise DemoError("NO. " + "; ".join(problems))
    print(f"  read twice    {again:,} rows after the kills, the same both times")
    print(f"Yes: every row, on {', '.join(str(ranks) for ranks, *_ in LEGS)} ranks.", end=" ")


def clean(work: Path) -> None:
    """Remove what the demo writes, and the work folder if nothing else is in it."""
    for name in OURS:
        path = work / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        work.rmdir()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 1 if the runs differ or something failed; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, default=Path(".demo"), metavar="FOLDER", help="default: .demo")
    parser.add_argument("--keep", action="store_true", help="leave text, tokens, logs and checkpoints there")
    parser.add_argument("--seed", type=int, help="of where the kills fall; default: another one every time")
    args = parser.parse_args(argv)
    work = args.workdir.resolve()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit that takes the training processes along
    began = time.perf_counter()
    clean(work)
    work.mkdir(parents=True)
    try:
        run(work, seed)
    except DemoError as error:
        print(f"demo: {error}\nEverything is left in {work}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"demo: interrupted. What there is, is left in {work}.", file=sys.stderr)
        return 130
    print(f"{time.perf_counter() - began:.0f} s in all.")
    if not args.keep:
        clean(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
