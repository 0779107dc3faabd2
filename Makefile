# Everything runs in .venv, which is built once for each content of pyproject.toml and constraints.txt.

.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin

# The first Python of 3.11 to 3.13 that can make virtual environments; name another with PYTHON=...
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do \
	"$$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo "$$python" && break; done)
KEY := $(shell { pwd; cat pyproject.toml constraints.txt; } | sha256sum | cut -c1-16)
# quick, or full: how much of what can be tried without end is tried (tests/faults).
FAULTS ?= quick
STAMP := $(VENV)/installed-$(KEY)

.PHONY: help demo test test-fast lint format types imports check venv clean

help: ## say what there is
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: venv ## the whole product in the small, on this machine
	@$(BIN)/python examples/demo/demo.py

test: venv ## all tests; ARGS="tests/unit -k names" for some, FAULTS=full to try every fault
	@$(BIN)/python -m pytest --faults=$(FAULTS) $(ARGS)

test-fast: venv ## the tests that start no Ray
	@$(BIN)/python -m pytest -m "not ray" --faults=$(FAULTS) $(ARGS)

lint: venv ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: venv ## put the code into the one format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: venv ## mypy, strict
	@$(BIN)/mypy

imports: venv ## import-linter: the layers
	@$(BIN)/lint-imports --no-logo

check: lint types imports test ## everything that CI runs

venv: $(STAMP) ## the environment, with pinned versions

# PyTorch comes first and alone: pip then takes the build that this machine's index prefers.
$(STAMP):
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.13 with venv is needed (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing into $(VENV) with $$($(PYTHON) --version); once, some minutes" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[train]'
	@rm -f $(VENV)/installed-*
	@touch $@

clean: ## remove the environment and all caches, not the platform's state
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
