"""Each recipe of docs/trainers, run with the real trainer: killed, resumed, compared with a run that was never killed.

Every process kills itself with SIGKILL at batch 5 of an epoch of 5 or 6; the last checkpoint is that of batch 4. The
run goes on in new processes, on another number of ranks where the trainer has ranks.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import STEPS, WEIGHTS, Data, Runs, plain

DOCS = Path(__file__).parents[2] / "docs" / "trainers"
STEPS_TRAINED = STEPS + 4  # the epoch ends in between
SAVED, KILLED = 4, 5  # steps

# A worker process of a killed rank notices its death by itself.
WORKER: dict[str, Any] = {"num_workers": 1, "worker_options": {"multiprocessing_context": "fork"}}

needs_python_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="torchtitan and JAX need Python 3.11")


@pytest.fixture(params=["one set", "a mixture"])
def given(request: pytest.FixtureRequest, data: str, mixture: dict[str, str]) -> tuple[Data, dict[str, Any]]:
    """What a run reads, and the options for that."""
    return (data, {}) if request.param == "one set" else (mixture, {"weights": WEIGHTS})


@pytest.mark.parametrize(
    ("recipe", "ranks", "then", "first_options"),
    [
        ("ddp", 2, 1, WORKER),
        ("accelerate_loop", 2, None, WORKER),
        ("hf_trainer", 2, None, WORKER),
        ("lightning", 2, None, WORKER),
        pytest.param("torchtitan_loader", 2, 1, {}, marks=needs_python_3_11),
        ("nanogpt", None, None, WORKER),
    ],
)
def test_a_killed_run_goes_on_with_the_next_batch_on_another_number_of_ranks(
    given: tuple[Data, dict[str, Any]],
    tmp_path: Path,
    recipe: str,
    ranks: int | None,
    then: int | None,
    first_options: dict[str, Any],
) -> None:
    accumulated = 2 if recipe == "hf_trainer" else 1
    data, options = given
    runs = Runs(recipe, data, tmp_path, **options)
    before = runs.stretch(STEPS_TRAINED, ranks, kill_at=KILLED * accumulated, **first_options)
    after = runs.stretch(STEPS_TRAINED, then)
    window = {"window": 64} if recipe == "torchtitan_loader" else {}  # the recipe leaves it out
    expected = plain(data, STEPS_TRAINED * accumulated, **options, **window)
    assert before == expected[: KILLED * accumulated]
    assert after == expected[SAVED * accumulated :]


@needs_python_3_11
def test_jax_goes_on_with_the_next_batch_on_another_number_of_processes_and_devices(
    given: tuple[Data, dict[str, Any]], tmp_path: Path
) -> None:
    data, options = given
    runs = Runs("jax_loop", data, tmp_path, **options)
    expected = plain(data, STEPS_TRAINED, **options)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    assert runs.stretch(STEPS_TRAINED, 2, kill_at=KILLED, devices=2, coordinator=address) == expected[:KILLED]
    assert runs.stretch(STEPS_TRAINED, devices=2) == expected[SAVED:]


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.py")), ids=lambda path: path.stem)
def test_the_docs_show_each_recipe_as_it_is_tested(path: Path) -> None:
    shown = re.findall(r"^```py\n(.*?)^```", (DOCS / f"{path.stem}.md").read_text(), re.MULTILINE | re.DOTALL)
    assert path.read_text() in shown
