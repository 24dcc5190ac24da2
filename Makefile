# One verb per thing to do; each makes what it needs, once, in .venv.
# Another interpreter: make PYTHON=/path/to/python3.12 demo

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check
EXISTING = $(wildcard src tools tests examples benchmarks)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test test-all lint style format clean sim coverage test-planted test-stacks stacks \
  test-schedulers test-pythons test-pythons-quick test-wheel test-torch bench soak page docs dist

help: ## Print this list
	@awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } \
	  /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## Every day

demo: $(VENV)/.ready ## Show a real job of 4 workers that loses one and recovers
	@$(BIN)/python examples/demo.py

# What tells soonest that something is wrong: decisions, stories, clusters, words.
QUICK ?= tests/core tests/engine tests/admin tests/agent tests/scenarios tests/observe tests/runtime tests/cli \
  tests/test_mirror.py tests/test_protocol_tables.py
check: $(VENV)/.ready-test style ## Check style and run the tests that fail soonest; under a minute
	$(BIN)/python -m pytest -q --numprocesses 2 --dist worksteal -m "not slow" $(QUICK)
	$(BIN)/python -m tools.simulator --seeds 0:300 --jobs 2

# Most tests wait for processes, so that there may be more of them than cores. Types are checked
# beside them, those of a user's program (tests/elastic/typing) too.
WORKERS ?= 4
test: $(VENV)/.ready-test style ## Check style and types, and run all tests (installs PyTorch for CPU)
	$(BIN)/python -m tests.stacks.environments $(QUICK_STACKS)
	@$(BIN)/mypy & types=$$!; TEST_STACKS="$(QUICK_STACKS)" \
	  $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal; \
	  tests=$$?; wait $$types && exit $$tests

lint: style ## Check style, format and types
	$(BIN)/mypy

style: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/.ready-lint ## Rewrite the code into its format, with the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove everything that the other verbs made, .venv and its like included
	rm -rf $(VENV) .nox .stacks .schedulers .site .soak .pauses frontend/node_modules dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
	find $(EXISTING) -name __pycache__ -prune -exec rm -rf {} +

## More tests

test-all: ## Run all tests in every variation: starts, backends, orders, seeds, PyTorch's own API
	TEST_ALL=1 $(MAKE) test

SEEDS ?= 0:20000
sim: $(VENV)/.ready ## Run 20,000 simulated clusters under seeded faults (SEEDS=0:500 for fewer)
	$(BIN)/python -m tools.simulator --seeds $(SEEDS) --jobs 2

# Folders whose code runs in the process of its tests.
COVERED ?= core engine observe registers runtime store transport
coverage: $(VENV)/.ready-coverage ## Show which lines and branches of the core and what drives it no test reaches
	$(BIN)/python -m pytest -q --numprocesses 2 --dist worksteal $(COVERED:%=--cov=src/holdfast/%) \
	  $(COVERED:%=tests/%) tests/scenarios tests/contract

# In `make test` each is planted once, on one host where that can have it.
test-planted: $(VENV)/.ready-test ## Run all planted failures, also PyTorch on three hosts (root)
	TEST_PLANTED=1 $(BIN)/python -m pytest --numprocesses 2 tests/planted

test-stacks: $(VENV)/.ready-test stacks ## Run the tests of five real stacks, which take turns
	$(BIN)/python -m pytest tests/stacks

# The two that pip installs fastest; the others take minutes.
QUICK_STACKS ?= plain jax
stacks: $(VENV)/.ready ## Make the environments of the five stacks in .stacks
	$(BIN)/python -m tests.stacks.environments

test-schedulers: $(VENV)/.ready-test ## Run the tests under real Slurm, Open MPI and MPICH (root; installs them)
	$(BIN)/python -m tests.schedulers.environment
	TEST_SCHEDULERS=1 $(BIN)/python -m pytest tests/schedulers

# Versions, or paths of interpreters. Those that are asked for by name must be there.
PYTHONS ?=
TESTS   ?= tests
NOX = WORKERS=$(WORKERS) $(BIN)/nox
ON_PYTHONS = $(NOX) --sessions tests $(if $(PYTHONS),--force-pythons $(PYTHONS) --error-on-missing-interpreters)
test-pythons: $(VENV)/.ready-nox ## Run the tests that need no PyTorch on Python 3.11 to 3.15 (PYTHONS=3.13 for one)
	$(ON_PYTHONS) -- $(TESTS)

# What depends most on the interpreter: the processes, and what runs in them.
test-pythons-quick: $(VENV)/.ready-nox ## Run what depends most on the interpreter on each of them; a few minutes
	$(ON_PYTHONS) -- tests/core tests/worker tests/processes tests/integration/warm \
	  tests/elastic/multiprocessing/test_multiprocessing.py \
	  tests/elastic/multiprocessing/test_multiprocessing_functions.py

test-wheel: $(VENV)/.ready-nox ## Run what depends on the installation from a wheel, without the checkout's src
	$(NOX) --sessions wheel

TORCH ?= 2.15.0
test-torch: $(VENV)/.ready-nox ## Run what touches PyTorch on another version of it (TORCH=2.15.0)
	TORCH=$(TORCH) $(NOX) --sessions torch

## Measure

bench: $(VENV)/.ready-bench ## Measure beside torchrun and print the table (installs PyTorch)
	$(BIN)/python -m benchmarks

FOR ?= 1h
soak: $(VENV)/.ready-bench ## Harm a PyTorch job that checks itself every 30 s, for an hour (FOR=5m for less)
	$(BIN)/python -m benchmarks.soak --for $(FOR)

## Build

page: ## Build the dashboard's page from frontend/ into the package (Node 20 and npm)
	cd frontend && npm install --no-save --no-audit --no-fund && npm test && npm run build

docs: $(VENV)/.ready-docs ## Build the site of all pages in .site/html, with links and anchors checked
	$(BIN)/python tools/docs/build_site.py

dist: $(VENV)/.ready-dist ## Build the wheel, the sdist and their bills of materials (SBOM) in dist/
	$(BIN)/python -m tools.package.build

# The stamps are hidden files in .venv, so that removing .venv forgets them too.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Holdfast needs Python 3.11 or newer, and $(PYTHON) is older or missing." >&2; \
	  echo "hint: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing Holdfast into $(VENV) (once, a few seconds) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.ready-%: pyproject.toml $(VENV)/.ready
	@echo "Installing what 'make $*' needs into $(VENV) (once$(if $(filter lint docs dist coverage nox,$*),,; PyTorch takes a minute)) ..."
	@$(PIP) install --editable '.[$*]'
	@touch $@
