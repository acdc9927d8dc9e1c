# The commands for developers, hooks and CI. Everything runs in a private .venv.

PYTHON ?= python3
JOBS   ?= 2
SEEDS  ?= 5000
ROUNDS ?= 500

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup test quick check format swarm mutants crash chaos bench coverage-of-requirements docs demo lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-26s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Install the locked versions into .venv

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Limosa needs Python 3.11 or newer; name one with make PYTHON=…")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(PIP) -r requirements.lock
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

test: check  ## Run `check` and all tests except the slow ones; core must have full branch coverage
	@$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" \
	    --cov=limosa.core --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

# More workers than cores, because many of these tests wait.
quick: JOBS = 4
quick: $(STAMP)  ## Run the tests that start no processes, in about a minute and a half
	@PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=.venv/pycache $(BIN)/python -m pytest -q -n $(JOBS) --quick

check: $(STAMP)  ## Check formatting, lint, types, imports between packages, and generated docs
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted: run 'make format'."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }
	@$(BIN)/python -m tools.generate_docs --check
	@$(BIN)/python -m tools.requirement_coverage --quiet

format: $(STAMP)  ## Format the code and apply automatic lint fixes
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

swarm: $(STAMP)  ## Simulate SEEDS=5000 clusters; every combination of stage and fault must occur
	@$(BIN)/limosa simulate --seeds $(SEEDS) --jobs $(JOBS) --require-all-cells

mutants: $(STAMP)  ## Check that the simulator finds each planted bug; SEARCH=1 searches for new seeds
	@$(BIN)/limosa mutants $(if $(SEARCH),--search)

crash: $(STAMP)  ## Kill a real store ROUNDS=500 times; flip every bit of a small one
	@$(BIN)/python -m tests.storage.crash --rounds $(ROUNDS) --jobs $(JOBS)

chaos: ROUNDS = 200
chaos: $(STAMP)  ## Inject faults into a real cluster for ROUNDS=200 rounds, during MOVES=500 moves on Spark, or in OVERLOAD=20 bursts of writes
	@$(BIN)/python -m tests.chaos $(if $(OVERLOAD),--overload $(OVERLOAD),$(if $(MOVES),--moves $(MOVES),--rounds $(ROUNDS)))

bench: $(STAMP)  ## Run one benchmark: NAME=routing
	@test -n "$(NAME)" && test -f "bench/$(NAME).py" || { \
	    echo "bench: $(if $(NAME),there is no benchmark '$(NAME)',name a benchmark with NAME=…)." \
	         "There are:" $(patsubst bench/%.py,%,$(filter-out bench/_%,$(wildcard bench/*.py))) >&2; exit 2; }
	@$(BIN)/python bench/$(NAME).py

coverage-of-requirements: $(STAMP)  ## List which requirements and failure scenarios have a test
	@$(BIN)/python -m tools.requirement_coverage

docs: $(STAMP)  ## Regenerate the generated parts of the docs
	@$(BIN)/python -m tools.generate_docs

demo: $(STAMP)  ## Run a real cluster under load: add, drain and kill nodes, move partitions on Spark, check every row
	@$(BIN)/limosa demo

lock:  ## Resolve new versions into requirements.lock (needs uv)
	@command -v uv >/dev/null || test -x $(BIN)/uv || { echo "lock: install uv first." >&2; exit 2; }
	@versions=$$(PATH="$$PATH:$(BIN)" uv pip compile pyproject.toml --extra spark --extra admin --group dev --universal \
	    --python-version 3.11 --no-header --no-annotate --quiet --upgrade) && { \
	    echo '# Exact versions of what `make setup` installs. Written by `make lock`; do not edit.'; \
	    echo "$$versions"; } > requirements.lock

clean:  ## Remove the environment, caches and reports
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache htmlcov dist .coverage .coverage.*
	@find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} +
