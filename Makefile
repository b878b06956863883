# Everything sets itself up: a virtual environment in .venv, whose stamp files depend on
# pyproject.toml. Needs Python 3.10 or newer (with its venv module) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet
# The slow tests need a torch, preferably a build without a GPU; tried in this order.
TORCH ?= torch==2.13.0
TORCH_ELSE ?= torch
# How many tests run at once; 0: one after the other, in one process (as with a plain pytest).
TEST_PROCESSES ?= 2
PYTEST := $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal
# Tests start a thousand processes, which would each compile every module that they import.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-full bench bench-short lint format types layers clean

help:
	@echo "make demo        evaluate shipped policies; then a fleet: killed, resumed, compared"
	@echo "make test        run the quick tests (about four minutes on two cores)"
	@echo "make test-slow   run the slow tests too (installs torch and stable-baselines3)"
	@echo "make test-full   run fault tests in full count"
	@echo "make bench       print the table of performance ratios (bench-short: a short form)"
	@echo "make lint        ruff, basedpyright, import-linter"
	@echo "make format      let ruff format the code"
	@echo "make clean       remove the virtual environment and caches"

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/fleet_demo.py

test: $(VENV)/.test
	$(PYTEST) $(PYTEST_ARGS)

test-slow: $(VENV)/.slow
	$(PYTEST) -m "(slow or fault) and not fault_full" --timeout=600 $(PYTEST_ARGS)

test-full: $(VENV)/.test
	$(BIN)/python -m pytest -m "fault_full" --timeout=3600 $(PYTEST_ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

bench-short: $(VENV)/.bench
	$(BIN)/python -m benchmarks --short

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# --------------------------------------------------------------------------------- setting up

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; ok = sys.version_info >= (3, 10); ok or print("rollmesh needs Python 3.10 or newer; " + sys.executable + " is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12"); sys.exit(not ok)'
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "the venv module is missing or incomplete; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	@echo "installing rollmesh with a simulator"
	@$(PIP) -e '.[mujoco]'
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml
	@echo "installing rollmesh with what its tests need"
	@$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	@echo "installing rollmesh with its development tools"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.slow: $(VENV)/.test
	@echo "installing $(TORCH), stable-baselines3, dm_control, trackers and what else slow tests need"
	@$(PIP) '$(TORCH)' || $(PIP) '$(TORCH_ELSE)'
	@$(PIP) -e '.[atari,dm,sb3,torch,track]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	@echo "installing what rollmesh is measured against"
	@$(PIP) -e '.[bench]' || echo "some peer cannot be installed here: its rows are left out"
	@touch $@
