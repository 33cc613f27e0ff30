# Everything installs itself into .venv on first use; a stamp file says that it is done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# One thread an operation: small tensors gain nothing from more, and a busy second core
# makes them wait.
ONE_THREAD := OMP_NUM_THREADS=1

.PHONY: demo test test-slow test-distributed lint docs bench clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## train a small network on digits with SGD and with SBS
	$(ONE_THREAD) $(BIN)/python examples/digits.py

test: $(STAMP)  ## all tests but the slow ones and those of several processes
	$(ONE_THREAD) $(BIN)/python -m pytest -m "not slow and not distributed" -n auto

test-distributed: $(STAMP)  ## the tests of several processes: DDP, FSDP2, torchrun, Ray
	$(ONE_THREAD) $(BIN)/python -m pytest -m "distributed and not slow"

test-slow: $(STAMP)  ## the slow tests alone
	$(ONE_THREAD) $(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## build the pages and run their examples; a warning is an error
	$(ONE_THREAD) $(BIN)/python -m sphinx -W --keep-going -q -b doctest docs docs/_build/doctest
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(STAMP)  ## speed and memory against torch's own optimizers
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .pytest_cache
