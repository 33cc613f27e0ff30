# Each target installs what it needs into .venv on first use; stamp files say what is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(VENV)/.lab
DEV := $(VENV)/.dev
INTEGRATIONS := $(VENV)/.integrations
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without --no-compile half of the time goes into byte code that is never imported.
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable

# One thread per operation: small tensors gain nothing from more, and a busy second core
# makes them wait.
ONE_THREAD := OMP_NUM_THREADS=1

.PHONY: demo test test-slow test-distributed test-integrations test-sanitize lint docs bench clean

$(LAB): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) '.[lab]'
	touch $(LAB)

$(DEV): $(LAB)
	$(PIP_INSTALL) '.[dev]'
	touch $(DEV)

$(INTEGRATIONS): $(DEV)
	$(PIP_INSTALL) '.[integrations]'
	touch $(INTEGRATIONS)

demo: $(LAB)  ## is SBS, or its control, better than SGD on digits, when all are tuned?
	$(ONE_THREAD) $(BIN)/stochbatch compare sgd sbs sbs-mean-field --budget 3 --epochs 12 \
		--share 0.25 --batch-size 16 --to reports/demo

test: $(DEV)  ## all tests but the slow ones and those of several processes
	$(ONE_THREAD) $(BIN)/python -m pytest -m "not slow and not distributed and not integrations" -n auto

test-distributed: $(DEV)  ## the tests of several processes: DDP, FSDP2, torchrun, Ray
	$(ONE_THREAD) $(BIN)/python -m pytest -m "distributed and not slow"

test-integrations: $(INTEGRATIONS)  ## transformers, accelerate, Lightning, torchrun: the examples
	$(ONE_THREAD) $(BIN)/python -m pytest -m integrations tests/integrations

test-slow: $(DEV)  ## only the slow tests
	$(ONE_THREAD) $(BIN)/python -m pytest -m slow

test-sanitize: $(DEV)  ## a minute of random native steps, built with sanitizers (needs GCC)
	$(ONE_THREAD) $(BIN)/python tools/sanitize.py

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DEV)  ## build the pages and run their examples; a warning is an error
	$(ONE_THREAD) $(BIN)/python -m sphinx -W --keep-going -q -b doctest docs docs/_build/doctest
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(DEV)  ## speed and memory against torch's own optimizers
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .pytest_cache
