# `make demo` and `make test` set up all they need; the second time that costs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help install demo test lint types unit browser test-slow mutants bench bench-peers clean

help:            ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: $(READY) ## the virtual environment with konsil in it

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: install     ## train, compare, draw: the synthetic retina federation
	$(BIN)/konsil demo --out runs/demo

test: lint types unit ## lint, types, tests

lint: install     ## ruff, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: install    ## mypy
	$(BIN)/mypy

unit: install     ## the tests that take minutes together
	$(BIN)/python -m pytest -n 2 --dist worksteal

browser:         ## Chromium and dicom3tools from Debian, for tests that skip without them
	{ command -v chromium && command -v dciodvfy; } >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium dicom3tools; }

test-slow: install ## the tests that take longer
	$(BIN)/python -m pytest -m slow

mutants: install  ## deliberate faults that the tests of methods must notice; minutes
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants

bench: install    ## ratios measured side by side
	$(BIN)/python -m benchmarks

bench-peers: install ## against pfl, Flower and FLARE, each in its own environment; Linux
	$(BIN)/python -m benchmarks.peers

clean:            ## what runs and tools leave behind
	rm -rf runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
