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

# The article's comparison in small; the same trials as in the whole of it at this scale.
DEMO := comparison --scale demo --only 'batch size=16' --only method=SGD,Dropout,SBS

demo: $(STAMP)  ## three methods on 338 digits, and the page that compares them
	$(ONE_THREAD) $(BIN)/stochbatch study run $(DEMO)
	$(ONE_THREAD) $(BIN)/stochbatch report $(DEMO) --to reports/demo

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
