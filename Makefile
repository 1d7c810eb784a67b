# `make test` and `make demo` set everything up by themselves, in a virtual environment of their own (.venv).
#
# PyTorch: a machine without an NVIDIA GPU gets the small CPU build, one with a GPU the default build.
# Override with, for instance:  make demo TORCH="torch==2.9.1" TORCH_FLAGS="--index-url https://..."
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
ifeq ($(shell command -v nvidia-smi 2>/dev/null),)
TORCH_FLAGS ?= --extra-index-url https://download.pytorch.org/whl/cpu
else
TORCH_FLAGS ?=
endif
BIN := $(VENV)/bin
# Many tests wait for threads and processes of their own, so more workers than cores are worth having.
WORKERS ?= 3

.PHONY: help install test lint types unit demo soak bench scaling clean

help:
	@echo "make test   lint, types and tests      make demo   text to a killed and resumed training run"
	@echo "make lint | types | unit               one part of make test"
	@echo "make soak   pretokenization and loading killed again and again, and compared with quiet runs; bit rot"
	@echo "make bench  loaders compared           make bench BENCH_FLAGS='--tokens 4_000_000 --rounds 2'  is a small run"
	@echo "make scaling  docs/performance.md measured anew: how speed and memory scale"

# One environment, filled in two steps: what the demo needs, and the rest of what the tests need.
# torch goes first and alone: its extra index is then asked for nothing else.
$(VENV)/.demo: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-deps $(TORCH_FLAGS) "$(TORCH)"
	$(BIN)/python -m pip install --editable ".[demo]"
	@touch $@

# torchtitan asks for old releases of others, and of those needs only what the extra `dev` names.
$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --editable ".[dev]"
	$(BIN)/python -m pip install --no-deps "torchtitan==0.3.0; python_version >= '3.11'"
	@touch $@

install: $(VENV)/.dev

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The types are checked while tests wait.
test: lint
	$(MAKE) --no-print-directory --jobs 2 types unit

demo: $(VENV)/.demo
	$(BIN)/python tools/demo/demo.py

# The peers need dozens of packages, so they have an environment of their own. torchvision, which some of them ask for,
# is named so that pip finds the one that goes with torch. The two sets: documents of 1,000 and of 50 tokens. The surface
# is over more lengths and sizes of row groups, with fewer loaders; a small run of it:
# SURFACE_FLAGS='--tokens 1_000_000 --seconds 0.1 --rounds 1 --lengths 50 1000'
BENCH_VENV ?= .venv-bench
TORCHVISION ?= torchvision==0.28.0
BENCH_FLAGS ?=
SURFACE_FLAGS ?=

$(BENCH_VENV)/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-deps $(TORCH_FLAGS) "$(TORCH)" "$(TORCHVISION)"
	$(BENCH_VENV)/bin/python -m pip install --quiet --editable ".[bench]" "$(TORCH)" "$(TORCHVISION)"
	@touch $@

# Pretokenization: 40 kills at random moments, with one worker process and with two. Loading: 60 kills on each of a disk
# and an S3 server, on 1 to 8 ranks; and sets that grow, with kills of readers and writer in 50 runs on each. Bit rot:
# thousands of damages of files, checkpoints and indexes. To put what came out into docs/reliability.md:
# make soak LOADER_SOAK_FLAGS=--write-docs GROWING_SOAK_FLAGS=--write-docs BIT_ROT_FLAGS=--write-docs
SOAK_FLAGS ?=
LOADER_SOAK_FLAGS ?=
GROWING_SOAK_FLAGS ?=
BIT_ROT_FLAGS ?=
soak: install
	$(BIN)/python tools/soak/pretokenize_soak.py $(SOAK_FLAGS)
	$(BIN)/python tools/soak/pretokenize_soak.py --seq-len 2048 $(SOAK_FLAGS)
	$(BIN)/python tools/soak/soak.py $(LOADER_SOAK_FLAGS)
	$(BIN)/python tools/soak/growing_soak.py $(GROWING_SOAK_FLAGS)
	$(BIN)/python tools/soak/bit_rot.py $(BIT_ROT_FLAGS)

bench: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python tools/benchmark/benchmark.py --output build/benchmark $(BENCH_FLAGS)
	$(BENCH_VENV)/bin/python tools/benchmark/benchmark.py --mean-length 50 --output build/benchmark-50 $(BENCH_FLAGS)
	$(BENCH_VENV)/bin/python tools/benchmark/surface.py $(SURFACE_FLAGS)

# Every table and picture of docs/performance.md but the comparison with others; a quiet machine and half an hour.
SCALING_FLAGS ?=
scaling: install
	$(BIN)/python -m pip install --quiet "matplotlib>=3.8"
	$(BIN)/python tools/scaling/scaling.py $(SCALING_FLAGS)
	$(BIN)/python tools/scaling/scaling.py --write-docs

clean:
	rm -rf $(VENV) $(BENCH_VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
