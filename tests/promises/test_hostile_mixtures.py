"""States of mixtures that no run has written: damage or a mismatch, in a short line; never a hang or another error."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import MIXED, OPTIONS, Reader
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from unique_sets import unique_groups, write_set

from parquet_loader import CheckpointError, ParquetLoader
from parquet_loader.checkpoint import open_checkpoint, seal_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, and a checkpoint of a mixture of them whose rows changed twice, and that has skipped and reweighted."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, lengths in (("code", [3, 4, 0]), ("web", [9, 5])):
        write_set(folder / "set" / name, unique_groups([[lengths, [5]], [[6] * 4, [2, 9]]]))
    sources = {name: str(folder / "set" / name) for name in ("code", "web")}
    state = None
    for seq_len in (4, 7, 4):
        options = {**OPTIONS, "seq_len": seq_len, "weights": MIXED, "world_size": 2}
        with ParquetLoader(sources, cache_dir=folder / "own", **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
                loader.reweight({"code": 1, "web": 1})
            loader.skip(50)
            next(iter(loader))
            state = loader.state_dict()
            (folder / "part").write_bytes(loader.checkpoint())
    return folder


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[Reader]:
    reader = Reader(folder)
    yield reader
    reader.close()


def tree_in(folder: Path) -> dict[str, Any]:
    """The state, its JSON read."""
    state = open_checkpoint((folder / "part").read_bytes())[0]
    return {**state, "history": json.loads(state["history"]), "sources": json.loads(state["sources"])}


def sealed(tree: dict[str, Any]) -> bytes:
    text = {name: json.dumps(tree[name]) for name in ("history", "sources") if name in tree}
    return seal_checkpoint({**tree, **text}, None, 2)


NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]
HOSTILE = st.sampled_from(
    [
        *(None, True, False, -1, 0, 1, 2, 3, 7, 63, 64, 65, 256, 10**6, 2**31, 2**53, 10**18, 2**62 - 1, 2**62, 2**64),
        *(10**300, 1.0, -0.5, math.nan, math.inf, "", "x", "code", "web", "schedule", "exhausted", "reweight"),
        *("x" * 5000, "\ud800", "\n", [], {}, [1], [[]], [[0, 4]], [[0, 1], [1, 2]], NESTED, {"x": 1}, {"web": 10**18}),
        *({"": 1}, {"code": 2**61, "web": 1}, {f"s{number}": 1 for number in range(2000)}),
        [[0, {"web": 1}, "schedule"]],
        [[0, {"web": 1}, "schedule"], [0, {"code": 1}, "exhausted"]],
    ]
)


def places_in(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from places_in(child, (*path, key))


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """With one to three places that hold something else, are gone, or are there twice."""
    for _ in range(draw(st.integers(1, 3))):
        tree = copy.deepcopy(tree)
        *path, key = draw(st.sampled_from(list(places_in(tree))))
        at = tree
        for step in path:
            at = at[step]
        what = draw(st.sampled_from(["replace"] * 6 + ["remove", "double"]))
        if what == "replace":
            at[key] = draw(HOSTILE)
        elif what == "remove":
            del at[key]
        elif isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        else:
            at[f"{key}2"] = copy.deepcopy(at[key])
        if not list(places_in(tree)):
            break
    return tree


def test_what_was_not_changed_works(folder: Path, reader: Reader) -> None:
    assert reader.use("mixture", sealed(tree_in(folder))) == ([], "", [])


@settings(max_examples=300)
@given(data=st.data())
def test_a_made_up_state_is_refused_in_a_line_or_works(folder: Path, reader: Reader, data: st.DataObject) -> None:
    try:
        checkpoint = sealed(data.draw(changed(tree_in(folder))))
    except (OverflowError, UnicodeEncodeError):  # msgpack has no such number or text; JSON does
        reject()
    kinds, text, _ = reader.use("mixture", checkpoint)
    assert not kinds or {"CheckpointError", "SourceExhaustedError"} & set(kinds), (kinds, text)
    assert len(text) < 2000


def history(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree["history"].update(changes)


STAGE = [0, {"web": 1}, "schedule"]
ABSURD = {
    "a hundred thousand stages": history(stages=[[64 * k, {"web": 1}, "schedule"] for k in range(10**5)]),
    "a hundred thousand stages of one block": history(stages=[STAGE] * 10**5),
    "a stage of a hundred thousand sources": history(stages=[[0, {f"s{k}": 1 for k in range(10**5)}, "schedule"]]),
    "a hundred thousand changes of length": history(lengths=[[k, 1 + k % 2] for k in range(10**5)]),
    "a thousand changes of length": history(lengths=[[2 * k * (k % 2 + 1), 2] for k in range(1000)]),
    "changes of length at every row": history(lengths=[[3 * k - k % 2, 2 - k % 2] for k in range(20_000)]),
    "another length in each row": history(lengths=[[3 * (k // 2) + k % 2, 1 + k % 2] for k in range(2001)]),
    "a hundred thousand skips": history(skips=[[k, k + 1] for k in range(10**5)]),
    "weights that are a list": history(stages=[[0, ["web"], "schedule"]]),
    "weights that are none": history(stages=[[0, {}, "schedule"]]),
    "a weight of nothing": history(stages=[[0, {"web": 0}, "schedule"]]),
    "a weight that is a share": history(stages=[[0, {"web": 0.5}, "schedule"]]),
    "a stage from a block that has no number": history(stages=[[10**30, {"web": 1}, "schedule"]]),
    "stages that fall": history(stages=[STAGE, [9, {"web": 1}, "x"], [3, {"web": 1}, "x"]]),
    "no stages": history(stages=[]),
    "a length of nothing": history(lengths=[[0, 0]]),
    "a length beyond all": history(lengths=[[0, 10**18]]),
    "no lengths": history(lengths=[]),
    "a position in the middle of a row": lambda tree: tree.update(position=tree["position"] + 1),
    "a position beyond all": lambda tree: tree.update(position=2**62 // 4 - 1),
    "a position before the changes": lambda tree: tree.update(position=3),
    "another number of lanes": lambda tree: tree.update(lanes=2**31 - 1),
    "sources that are a list": lambda tree: tree.update(sources=[]),
    "sources that are none": lambda tree: tree.update(sources={}),
    "a source that is a list": lambda tree: tree["sources"].update(web=[]),
    "a source that says nothing": lambda tree: tree["sources"].update(web={}),
    "a source that is the only one": lambda tree: tree["sources"].update({"": tree["sources"]["web"]}),
    "history that is a number": lambda tree: tree.update(history=5),
}


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD)
def test_what_no_mixture_has_is_refused_at_once(folder: Path, reader: Reader, change: Callable[[Any], None]) -> None:
    tree = tree_in(folder)
    change(tree)
    kinds, text, _ = reader.use("mixture", sealed(tree))
    assert "CheckpointError" in kinds, (kinds, text)
    assert len(text) < 2000


def test_a_run_whose_rows_changed_two_hundred_times_is_read(folder: Path, reader: Reader) -> None:
    tree = tree_in(folder)
    changes = [[3 * (k // 2) + k % 2, 1 + k % 2] for k in range(200)]
    tree.update(
        position=300,
        history={
            "lengths": changes,
            "skips": [],
            "stages": [[0, {"code": 1, "web": 2}, "schedule"], [4, {"web": 1}, "schedule"]],
        },
    )
    kinds, text, _ = reader.use("mixture", sealed(tree))
    assert "CheckpointMismatchError" in kinds or not kinds, (kinds, text)


@pytest.mark.parametrize("name", ["history", "sources"])
@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", "[]", "null", "1" * 5000, "[" * 100_000, '{"lengths":' + "[" * 100_000, '"\\ud800"', "{1:2}", "\0"],
    ids=range(11),
)
def test_text_that_is_no_history_is_refused_as_damage(folder: Path, name: str, text: str) -> None:
    sources = {name: str(folder / "set" / name) for name in ("code", "web")}
    state = {**open_checkpoint((folder / "part").read_bytes())[0], name: text}
    with ParquetLoader(sources, cache_dir=folder / "own", weights=MIXED, **OPTIONS) as loader:
        with pytest.raises(CheckpointError) as caught:
            loader.load_state_dict(state)
        assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)
        assert loader.state_dict()["position"] == 0
