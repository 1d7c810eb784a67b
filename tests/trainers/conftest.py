from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import PRELOADED
from runs import write_data, write_mixture

multiprocessing.set_forkserver_preload([*PRELOADED, "accelerate", "transformers.trainer", "pytorch_lightning"])


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("trainers"))


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_mixture(tmp_path_factory.mktemp("mixture"))
