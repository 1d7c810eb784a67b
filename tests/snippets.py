"""The fenced blocks of a Markdown page, and running them: all of a page share one namespace and one folder."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A fenced block.

    Attributes:
        language: such as ``python``.
        note: what follows the language; ``not run: REASON`` for what no test can run.
        line: of the fence, from 1.
        code: what is in it.
    """

    language: str
    note: str
    line: int
    code: str


def snippets(text: str, *languages: str) -> list[Snippet]:
    """The blocks of these languages, in order."""
    return [
        Snippet(match[1], match[2].strip(), text[: match.start()].count("\n") + 1, match[3])
        for match in _FENCE.finditer(text)
        if match[1] in languages
    ]


def run_snippets(path: Path, blocks: Iterable[Snippet]) -> None:
    """Run blocks of a page in the current folder: Python in this process, bash with this Python's commands."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    for block in blocks:
        if block.note:
            continue
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, str(path), "exec"), namespace)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.code],
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{path}:{block.line}: {done.stderr}{done.stdout}"


def write_corpus(folder: Path) -> None:
    """What the README's command reads."""
    (folder / "corpus").mkdir()
    with gzip.open(folder / "corpus" / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in ("hello world", "world"))
    words = Tokenizer(models.WordLevel({"<unk>": 0, "hello": 1, "world": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["</s>"])
    words.save(str(folder / "tokenizer.json"))
