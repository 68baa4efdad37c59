# make train       set up, train the default recipe on generated data
# make test        set up, run the tests (minutes)
# make test-all    the long matrices too
# make check       ruff and mypy

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt
CORE := CMakeLists.txt $(wildcard csrc/*)

.PHONY: train test test-all check setup clean

train: setup
	$(BIN)/shoal train recipes/planted-bpr-single.yaml

test: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -q

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.ready

# torch comes first and pinned, so that no other package decides which build of it is taken.
$(VENV)/.ready: constraints.txt pyproject.toml $(CORE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) scikit-build-core nanobind cmake ninja
	$(PIP) --no-build-isolation -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
