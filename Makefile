# Every command a developer needs. `make help` lists them; HACKING.md explains them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
VENV_PYTHON := $(VENV)/bin/python
# Wheel index for torch alone, such as one that carries the CPU build. Empty: whatever pip is configured for.
TORCH_INDEX ?=
SEED ?= 1
SEEDS ?= 2000
INPUTS ?= 1000000
FAULT ?= nan
PREFIX ?= /opt/costgov
DESTDIR ?=
PURGE ?=
DATA ?= $(COSTGOV_PLANNER_DATA)

# One thread each: two gloo ranks with a pool per core only fight over small machines. No JIT-built operators.
export OMP_NUM_THREADS ?= 1
export DS_ACCELERATOR ?= cpu
export TORCH_INDEX PREFIX DESTDIR PURGE
# Tests start hundreds of short processes: without its bytecode each would compile the package anew, a third of a second.
unexport PYTHONDONTWRITEBYTECODE

# nproc answers with OpenMP's variables where they are set, and above they are: asked that way, every check ran alone.
CORES := $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
# Four more than there are cores: the contract tests, which begin, wait for sockets and time-outs most of their time.
JOBS ?= $(shell echo $$(($(CORES) + 4)))
# Drills wait for processes more than for the processor. More of them at once than this, and their graces run out.
DRILL_JOBS ?= $(shell echo $$(($(CORES) + 1)))
PYTEST := $(VENV_PYTHON) -m pytest -q
LINTED := $(wildcard governor trainer_shim tests examples benchmarks docs)
DATA_TESTS := $(wildcard tests/tidy tests/timelines tests/golden)
GATE_SIMS := tests/sim/test_sim.py tests/sim/test_planted_bugs.py
OTHER_SIMS = $(filter-out $(GATE_SIMS),$(wildcard tests/sim/test_*.py)) tests/sim/fleet tests/fuzz
# In this order they begin. First who waits most; last are two quarters, which end together and leave no core idle.
CHECKS := test-contract test-data test-sim test-unit lint
UNIT_QUARTERS := test-unit-1 test-unit-2 test-unit-3 test-unit-4

.PHONY: help env check lint lint-format lint-types lint-imports test-data test-contract test-contract-clouds \
  test-contract-rest test-unit $(UNIT_QUARTERS) test-sim test drills drill-packages \
  fix sim sim-ceiling sim-node sim-nodes sim-fleet sim-one fuzz bench bench-planner docs golden-update policy-check demo install uninstall dist deb clean

help: ## List the commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## Build .venv (CPU torch first). Does nothing when it is up to date. TORCH_INDEX=URL picks torch's index.
	@.ci/env $(VENV)

check: env ## Lint, types, layers, tidy, unit, timelines, contract, golden, 2,000 simulated schedules.
	@start=$$SECONDS; export TMPDIR=$$(.ci/memory); \
	  $(MAKE) --keep-going --output-sync=target -j $(JOBS) $(CHECKS) \
	  && rm -rf "$$TMPDIR" && echo "make check: passed in $$((SECONDS - start)) s" \
	  || { echo "make check: the tests' files are in $$TMPDIR"; exit 1; }

lint: lint-format lint-types lint-imports

lint-format:
	@$(VENV_PYTHON) -m ruff check --quiet $(LINTED) && $(VENV_PYTHON) -m ruff format --check --quiet $(LINTED) \
	  || { echo "ruff: see above; 'make fix' repairs most of it"; exit 1; }

lint-types:
	@$(VENV_PYTHON) -m mypy

lint-imports:
	@$(VENV)/bin/lint-imports --no-cache > $(VENV)/import-linter.log || { cat $(VENV)/import-linter.log; exit 1; }

test-data:
	@$(PYTEST) $(DATA_TESTS)

# Two processes: more than half of a contract's time is waiting for time-outs, and one alone would end last.
test-contract: test-contract-clouds test-contract-rest

test-contract-clouds:
	@$(PYTEST) tests/contract/clouds

test-contract-rest:
	@$(PYTEST) tests/contract --ignore=tests/contract/clouds

# A quarter of the files each: one process with all of them would still run when everything else has ended, and of three
# the one with most of the dear tests did for a quarter of the time.
test-unit: $(UNIT_QUARTERS)

$(UNIT_QUARTERS): test-unit-%:
	@$(PYTEST) $$(find tests/unit -name 'test_*.py' | LC_ALL=C sort | awk 'NR % 4 == $* % 4')

# Schedules of halts. Those of nodes, ceilings and shares, and the fuzzing, are played with the drills.
test-sim:
	@$(PYTEST) $(GATE_SIMS)

test: check drills ## Everything: check, then drills.

drills: env drill-packages ## Real processes, signals, sockets, DeepSpeed, systemd, Prometheus; real runs, replayed.
	@$(PYTEST) -n $(DRILL_JOBS) --dist loadfile --no-loadscope-reorder --durations=40 tests/drills tests/real_runs $(OTHER_SIMS)

drill-packages:
	@.ci/system-packages drills

fix: env ## Repair what ruff can repair: imports, format, simple lint.
	@$(VENV_PYTHON) -m ruff check --quiet --fix $(LINTED) || true
	@$(VENV_PYTHON) -m ruff format $(LINTED)

sim: env ## Simulate SEEDS fault schedules of the halt (default 2,000).
	@$(VENV_PYTHON) -m tests.sim --seeds $(SEEDS)

sim-ceiling: env ## Simulate SEEDS runs that reach their ceiling (make sim-ceiling SEEDS=10000: four minutes of processor).
	@$(VENV_PYTHON) -m tests.sim --ceiling --seeds $(SEEDS)

sim-nodes: env ## Simulate SEEDS runs on several nodes: cut off, frozen, dead, restarted, with messages lost and doubled.
	@$(VENV_PYTHON) -m tests.sim.nodes --seeds $(SEEDS)

sim-node: env ## Simulate SEEDS nodes that people come to and leave.
	@$(VENV_PYTHON) -m tests.sim --node --seeds $(SEEDS)

fuzz: env ## Break INPUTS inputs of strangers (default 1,000,000: half an hour): make fuzz INPUTS=10000 SEED=2
	@$(VENV_PYTHON) -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)

sim-fleet: env ## Simulate SEEDS histories of a fleet that shares budgets (an hour of processor for 10,000).
	@$(VENV_PYTHON) -m tests.sim.fleet --seeds $(SEEDS) --jobs $(CORES)

sim-one: env ## Repeat one schedule and print its journal: make sim-one SEED=…
	@$(VENV_PYTHON) -m tests.sim --seed $(SEED)

bench: env ## Measure our cost beside peers': one table, some thirty minutes. docs/why/benchmarks.md keeps a result.
	@$(PYTEST) benchmarks/low_precision
	@$(VENV_PYTHON) -m benchmarks

bench-planner: env ## The planner against published measurements, beside other calculators: DATA=folder of the tables.
	@status=0; $(VENV_PYTHON) -m benchmarks.planner.memory $(if $(DATA),--data $(DATA)) || status=1; \
	  $(VENV_PYTHON) -m benchmarks.planner.speed $(DATA) || status=1; exit $$status

docs: env ## Regenerate docs/*.md that are drawn from the code.
	@$(VENV_PYTHON) -m docs.generators.generate

golden-update: env ## Rewrite the golden verdicts. The diff is the change of behaviour: read it.
	@COSTGOV_GOLDEN_UPDATE=1 $(PYTEST) tests/golden && git --no-pager diff --stat -- tests/golden

policy-check: env ## Check every shipped policy.
	@$(VENV)/bin/costgov policy check policies/*.toml

demo: env ## A real DeepSpeed run is halted: make demo FAULT=nan|hang|deaf|collapse|starve|budget|none
	@$(VENV_PYTHON) examples/demo.py --fault $(FAULT)

install: ## Install as a systemd service from this tree (root): virtualenv in PREFIX, unit, example config, policies.
	@deploy/install.sh

uninstall: ## Remove the service; PURGE=1 removes state and config too (root).
	@deploy/uninstall.sh

dist: env ## Build wheels and source archives of both distributions into dist/.
	@$(VENV_PYTHON) -m build --outdir dist . && $(VENV_PYTHON) -m build --outdir dist trainer_shim

deb: ## Build the Debian package into dist/, for the release that this machine has.
	@deploy/deb/build.sh

clean: ## Remove everything that these commands made, .venv included.
	@rm -rf .venv build dist .demo *.egg-info trainer_shim/*.egg-info trainer_shim/build \
	  .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find governor trainer_shim tests -name __pycache__ -type d -prune -exec rm -rf {} +
