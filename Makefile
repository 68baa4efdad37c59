# make train       set up, train the default recipe on generated data
# make test        set up, run the tests (minutes)
# make test-all    the long matrices too, the large extras, and kernels of GPUs by Triton's interpreter
# make check       ruff and mypy
# make wheels      what a release has, into dist/: wheels for Linux, and the source
# make matrix      those wheels in empty environments: each Python here with each torch (PYTHONS=…, TORCHES=…)
# make extras      the large extras (EXTRAS="ray onnx" for some of them)
# make docs        the documentation as a site, in build/docs (its tutorials run, minutes;
#                  TUTORIALS=off: shown without their output, seconds)
# make notebooks   the tutorials as executed Jupyter notebooks, in build/notebooks
# make browser     Chromium of Debian, for the tests of pages
# make fuzz        strange messages, files, configs and calls, 30 minutes (MINUTES=…, SEED=…)
# make chaos       runs killed at random and resumed, 60 minutes (MINUTES=…, SEED=…, TRIAL=…)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Of thousands of files, only those that training imports are compiled (see below): a minute less.
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q --no-compile
TORCH := torch==2.13.0
TRITON := triton==3.9.0
MINUTES ?= 30
TUTORIALS ?= on
# Those in the locks are part of `make setup` or `make tools`; the others are large.
SMALL_EXTRAS := docs index remote report serve servers tensorboard trees tune zstd
LARGE_EXTRAS := encode mlflow onnx ray torchrec torchx wandb
EXTRAS ?= $(LARGE_EXTRAS)
ifneq ($(filter-out $(SMALL_EXTRAS) $(LARGE_EXTRAS),$(EXTRAS)),)
$(error EXTRAS=$(EXTRAS): there are $(SMALL_EXTRAS) $(LARGE_EXTRAS))
endif
CORE := CMakeLists.txt $(wildcard csrc/*)

.PHONY: train test test-all check docs notebooks wheels matrix extras browser fuzz chaos setup tools clean

train: setup
	$(BIN)/shoal train recipes/synthetic-bpr-single.yaml

# Three at a time: tests of processes and sockets wait for much of theirs. Tests start hundreds of
# processes: what one compiles the next one reads, also where the environment says otherwise.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: tools
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

# A torch for CPUs comes without Triton (200 MB); torchfm has models that tests train as a user's own.
test-all: tools extras
	$(BIN)/python -c "import triton" 2>/dev/null || $(PIP) --no-deps $(TRITON)
	$(PIP) --no-deps torchfm
	$(BIN)/python -m pytest -q

check: tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2

# A tutorial that did not change is not run again (build/docs-cache). Which one runs, and how long it
# took, is printed (docs/conf.py).
docs: tools
ifeq ($(filter on off,$(TUTORIALS)),)
	$(error TUTORIALS=$(TUTORIALS): on or off)
endif
	$(BIN)/python docs/generate.py
	SHOAL_DOCS_RUN=$(if $(filter on,$(TUTORIALS)),1) PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo "docs: build/docs/index.html"

notebooks: tools
	$(BIN)/python docs/learn/notebooks.py build/notebooks

# Installed in place (-e), as `make setup` does: a plain `pip install` would put a copy of Shoal beside
# the clone, whose own `shoal/` then has no native core. TorchRec requires the FBGEMM of GPUs, which a
# torch for CPUs cannot load; FBGEMM 1.X belongs to torch 2.(X+5).
extras: setup
ifneq ($(filter-out torchrec,$(EXTRAS)),)
	$(PIP) --no-build-isolation -e ".[$$(echo $(filter-out torchrec,$(EXTRAS)) | tr ' ' ,)]"
endif
ifneq ($(filter torchrec,$(EXTRAS)),)
	$(PIP) tensordict torchmetrics==1.0.3 pyre-extensions
	$(PIP) --no-deps $$($(BIN)/python -c "import torch; \
	  minor = int(torch.__version__.split('.')[1]) - 5; cpu = '' if torch.version.cuda else '-cpu'; \
	  print(f'torchrec~=1.{minor}.0 fbgemm-gpu{cpu}~=1.{minor}.0')")
endif

wheels:
	$(PYTHON) .ci/wheels.py

matrix:
	$(PYTHON) .ci/matrix.py $(if $(PYTHONS),--pythons $(PYTHONS)) $(if $(TORCHES),--torch $(TORCHES))

browser:
	command -v chromium >/dev/null || apt-get install -y -q --no-install-recommends chromium

# The core is built once more, with the sanitizers of the compiler (ASan and UBSan).
fuzz: tools
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DSHOAL_SANITIZE=address,undefined -DSHOAL_SANITIZE_CORE=ON
	$(BIN)/cmake --build build/fuzz
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m fuzz --minutes $(MINUTES) \
	  --core $$(ls build/fuzz/_core*.so) --findings build/fuzz/findings $(if $(SEED),--seed $(SEED))

chaos: MINUTES = 60
chaos: tools
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
	  $(if $(TRIAL),--trial $(TRIAL))

setup: $(VENV)/.ready
tools: $(VENV)/.tools

# Everything but torch is taken only with the hashes of the locks. torch has builds for CPUs and for
# many GPUs, from indexes of its own or from the host; it is pinned, and its hash is not. The core is
# built while pip, which uses one processor, installs the rest. At last what training imports is
# compiled, by importing it, so that the first run starts as fast as the second.
$(VENV)/.ready: constraints.txt .ci/build.txt pyproject.toml $(CORE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	( $(PIP) --require-hashes --no-deps -r .ci/build.txt && \
	  $(PIP) --no-build-isolation --no-deps -e . ) & core=$$!; \
	  $(PIP) --require-hashes --no-deps -r constraints.txt && $(PIP) $(TORCH) && wait $$core
	$(BIN)/python -m compileall -q -j 0 shoal
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import polars, shoal, torch.utils.tensorboard, typer; shoal.run"
	touch $@

$(VENV)/.tools: $(VENV)/.ready .ci/tools.txt
	$(PIP) --require-hashes --no-deps -r .ci/tools.txt
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
