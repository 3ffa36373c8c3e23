# `make help` lists the targets. What a recipe says to people goes to stderr; stdout belongs to the command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -q
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
# Spinning OpenMP threads of several processes starve each other on a small machine.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest
# Swarms of processes in one worker process, all else in another one (tests/conftest.py).
SIDE_BY_SIDE := -n 2 --dist loadscope --no-loadscope-reorder
PROTOC := $(PY) -m grpc_tools.protoc -I node/transport=proto
ARGS ?=
MINUTES ?= 10
SEED ?= 1
SEEDS ?= 100
FROM ?= 0

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-full field sim-soak sim-scale lab bench bench-recovery chaos mutants lint format proto proto-check wheel clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1 - \2/p' $(firstword $(MAKEFILE_LIST)) \
	  | while IFS= read -r line; do printf '  %-14s %s\n' "$${line%% - *}" "$${line#* - }"; done

venv: $(DEV)  ## .venv with everything for development

$(RUNTIME): requirements.lock pyproject.toml
	@echo "setting up $(VENV) from requirements.lock (about a minute)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "regrow needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV) >&2
	@$(PIP) -r requirements.lock >&2
	@$(PIP) --no-deps --no-build-isolation -e . >&2
	@touch $@

$(DEV): $(RUNTIME) requirements-dev.lock
	@echo "adding what tests and lint need from requirements-dev.lock" >&2
	@$(PIP) -r requirements-dev.lock >&2
	@touch $@

demo: $(RUNTIME)  ## train the tiny preset in a local swarm of five processes (ARGS="--steps 20")
	@$(BIN)/regrow demo $(ARGS)

test: lint  ## lint and every test that is not marked full (up to 8 minutes)
	@$(PYTEST) $(SIDE_BY_SIDE) -m "not full" $(ARGS)

test-full: lint  ## lint and every test (up to 35 minutes)
	@$(PYTEST) $(SIDE_BY_SIDE) $(ARGS)

field: $(DEV)  ## every case of docs/field-cases.md, as often as it is worth (ARGS="--case 1"); the last line is JSON
	@OMP_NUM_THREADS=1 $(PY) -m tests.field $(ARGS)

sim-soak: $(DEV)  ## SEEDS=n simulated swarms FROM=k on, all faults mixed; the last line is JSON
	@$(PY) -m node.sim.soak --seeds $(SEEDS) --from $(FROM) $(ARGS)

sim-scale: $(DEV)  ## hours of a large simulated swarm that loses nodes (ARGS="--nodes 1000 --hours 6 --loss 0.10"); JSON
	@$(PY) -m node.sim.scale $(ARGS)

lab: $(RUNTIME)  ## what the loss of a stage costs, by policy (an hour; ARGS="--quick": a minute); the last line is JSON
	@$(BIN)/regrow lab forks $(ARGS)

bench: $(DEV)  ## tokens/s of a swarm against a plain loop; the last line is JSON
	@$(PY) -m tests.bench $(ARGS)

bench-recovery: $(DEV)  ## kill to commit of a lost stage, over emulated links (root); the last line is JSON
	@$(PY) -m tests.bench_recovery $(ARGS)

chaos: $(DEV)  ## eight real nodes and whatever can happen to them (MINUTES=10 SEED=1); the last line is JSON
	@$(PY) -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

mutants: $(DEV)  ## protocol/ made wrong in one place at a time (ARGS="--count 30 --seed 1"); the last line is JSON
	@$(PY) -m tests.mutants $(ARGS)

lint: $(DEV) proto-check  ## ruff (format and lint) and mypy
	@status=0; \
	$(BIN)/ruff check --quiet --output-format concise . || status=1; \
	$(BIN)/ruff format --check --quiet --output-format concise . || status=1; \
	$(BIN)/mypy --no-error-summary || status=1; \
	[ $$status = 0 ] || echo "lint failed (make format mends formatting)" >&2; exit $$status

format: $(DEV)  ## let ruff format and fix what it can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

proto: $(DEV)  ## generate node/transport/swarm_pb2* from proto/swarm.proto
	@mkdir -p node/transport
	@$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. node/transport/swarm.proto

# Generated code is committed; this notices when it is older than its source.
proto-check: $(DEV)
	@test -f proto/swarm.proto || exit 0; \
	tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PROTOC) --python_out="$$tmp" --pyi_out="$$tmp" --grpc_python_out="$$tmp" node/transport/swarm.proto && \
	for f in "$$tmp"/node/transport/*; do \
	  cmp -s "$$f" "node/transport/$${f##*/}" || { echo "node/transport/$${f##*/} differs from proto/swarm.proto: make proto" >&2; exit 1; }; \
	done

wheel: $(DEV)  ## dist/regrow-*.whl
	@rm -rf build dist
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip wheel -q --no-deps --no-build-isolation -w dist . >&2
	@rm -rf build
	@ls dist/*.whl

clean:  ## remove the venv and everything that was generated beside it
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
