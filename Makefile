# Bare `make` prints this help. `make run` and `make test` do all the set-up they need.
.DEFAULT_GOAL := help
.PHONY: help setup data run test check format bench clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help:  ## show this help
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make the environment and install dpray into it

# torch goes first: what follows then takes the build that is there instead of another one.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dpray needs Python 3.11 or later: make PYTHON=/path/to/it" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

data: setup  ## fetch MNIST and Fashion-MNIST into the cache
	$(BIN)/dpray data fetch mnist fashion-mnist

run: setup  ## a private classifier and private synthetic data from MNIST, and a page about them
	$(BIN)/dpray run dp-sgd --dataset mnist --epsilon 3 --delta 1e-5
	$(BIN)/dpray run dp-moments --dataset mnist --epsilon 1 --delta 1e-5 --set view=ink
	$(BIN)/dpray models --dataset mnist
	$(BIN)/dpray report --out report

test: setup  ## lint, types and the whole suite
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder

check: setup  ## ruff, mypy, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell dpray tests scripts tune_spaces docs README.md CHANGELOG.md

format: setup  ## let ruff mend and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## the short benchmarks: one private step, one fan-out, stage 1 of DP2-VAE
	$(BIN)/python scripts/bench_step.py
	$(BIN)/python scripts/bench_fanout.py
	$(BIN)/python scripts/bench_stage1.py

clean:  ## remove the environment and caches; runs and data stay where they are
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
