# make train       set up, train the default recipe on generated data
# make test        set up, run the tests (minutes)
# make test-all    the long matrices too, and kernels of GPUs by Triton's interpreter
# make check       ruff and mypy
# make fuzz        strange messages, files, configs and calls, 30 minutes (MINUTES=…, SEED=…)
# make chaos       runs killed at random and resumed, 60 minutes (MINUTES=…, SEED=…, TRIAL=…)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q
TORCH := torch==2.13.0
TRITON := triton==3.9.0
MINUTES ?= 30
CORE := CMakeLists.txt $(wildcard csrc/*)

.PHONY: train test test-all check fuzz chaos setup clean

train: setup
	$(BIN)/shoal train recipes/planted-bpr-single.yaml

test: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

# A torch for CPUs comes without Triton (200 MB); without it tests of kernels skip and say so.
test-all: setup
	$(BIN)/python -c "import triton" 2>/dev/null || $(PIP) --no-deps $(TRITON)
	$(BIN)/python -m pytest -q

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The core is built once more, with the sanitizers of the compiler (ASan and UBSan).
fuzz: setup
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DSHOAL_SANITIZE=address,undefined -DSHOAL_SANITIZE_CORE=ON
	$(BIN)/cmake --build build/fuzz
	PYTHONPATH=tests:tests/unit $(BIN)/python -m fuzz --minutes $(MINUTES) \
	  --core $$(ls build/fuzz/_core*.so) --findings build/fuzz/findings $(if $(SEED),--seed $(SEED))

chaos: MINUTES = 60
chaos: setup
	PYTHONPATH=tests $(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
	  $(if $(TRIAL),--trial $(TRIAL))

setup: $(VENV)/.ready

# Everything but torch is taken only with the hashes in constraints.txt. torch has builds for CPUs and
# for many GPUs, from indexes of its own or from the host; it is pinned, and its hash is not.
$(VENV)/.ready: constraints.txt pyproject.toml $(CORE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r constraints.txt
	$(PIP) $(TORCH)
	$(PIP) --no-build-isolation --no-deps -e .
	$(BIN)/python -m compileall -q shoal
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
