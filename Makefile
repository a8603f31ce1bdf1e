# Every target sets up what it needs: a virtual environment in .venv, PyTorch, this package with its
# native modules, and the extra for the task. Stamps in .venv make a second run do nothing.

PYTHON ?= python3
TORCH ?= torch==2.13.0
CXX ?= g++
ARGS ?=
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
CPP := $(wildcard csrc/*/*.cpp csrc/*/*.h)
NATIVE := $(filter-out csrc/tests/%,$(CPP))
COUNT ?= 3000
# Threads that spin while idle would slow every other process of a run.
QUIET_THREADS := OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2

export CXX
export MAX_JOBS ?= 2
export PIP_NO_INPUT = 1

.PHONY: help demo test test-opinfo sanitize tsan lint bench format build clean distclean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make demo    run a sentence encoder on the simulated chip   (ARGS='--json out.json')"
	@echo "make test    run all tests                                  (ARGS='tests/layout -k row')"
	@echo "make test-opinfo  run PyTorch's samples of every operator in eager mode (hours; goes on where it stopped)"
	@echo "make sanitize  native tests and fuzzers under AddressSanitizer and UBSan   (COUNT=200000)"
	@echo "make lint    check format, style and types"
	@echo "make bench   run the benchmarks                             (ARGS=benchmarks/functional.py)"
	@echo "make tsan    stress the native runtime with the thread sanitizer"
	@echo "make build   build the package and its native modules only"
	@echo "make format  format Python and C++"
	@echo "make clean   remove what was built; make distclean removes $(VENV) too"

demo: build $(STAMPS)/extra-demo
	@$(BIN)/loom demo $(ARGS)

test: build $(STAMPS)/extra-demo $(STAMPS)/extra-test
	@$(QUIET_THREADS) $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

# Every operator of PyTorch on its own samples, held to the record in both directions; ARGS='--match conv' for some.
test-opinfo: build $(STAMPS)/extra-demo $(STAMPS)/extra-test
	@$(QUIET_THREADS) $(BIN)/python tests/opinfo/sweep.py --workers $(JOBS) $(ARGS)

# Native code without torch, built with AddressSanitizer and UBSan: the runtime's tests, then COUNT damaged binaries
# and COUNT damaged job plans. The corpus comes from the compiler of this tree.
sanitize: build
	@$(BIN)/python tests/native/make_corpus.py build/corpus
	@$(MAKE) --silent --jobs=$(JOBS) --file=csrc/tests/sanitize.mk CXX='$(CXX)'
	@build/sanitize/runtime_tests build/corpus
	@build/sanitize/fuzz build/corpus $(COUNT)
	@$(BIN)/python tests/spyrecode/fuzz_plans.py $(COUNT)

lint: $(STAMPS)/package $(STAMPS)/extra-lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy torch_loom
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

bench: build $(STAMPS)/extra-demo
	@set -e; for program in $(or $(ARGS),$(sort $(wildcard benchmarks/*.py))); do \
	  echo "== $$program"; OMP_WAIT_POLICY=passive $(BIN)/python $$program; done

# The native runtime under random load, built with the thread sanitizer; ARGS='-- 64 10000 1000000' is the full load.
tsan: $(STAMPS)/package
	@$(BIN)/python tests/device/native/run.py --sanitize thread $(or $(ARGS),-- 64 50 20000)

format: $(STAMPS)/extra-lint
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP)

build: $(STAMPS)/package $(STAMPS)/native

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "torch-loom needs Python 3.11 or newer; '$(PYTHON)' is missing or older." \
	    "Name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v $(CXX) >/dev/null || { \
	  echo "torch-loom needs a C++20 compiler; '$(CXX)' is missing. Install g++ or name one: make CXX=clang++" >&2; \
	  exit 1; }
	@echo "creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "could not create $(VENV); on Debian install python3-venv" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	@echo "installing $(TORCH)"
	@$(PIP) '$(TORCH)'
	@touch $@

$(STAMPS)/build-tools: $(STAMPS)/torch
	@$(PIP) 'setuptools>=77' wheel ninja
	@touch $@

# No build isolation, so that no second PyTorch is fetched; native modules have their own stamp below.
$(STAMPS)/package: $(STAMPS)/build-tools pyproject.toml setup.py
	@echo "installing torch-loom"
	@LOOM_EXT=none $(PIP) --no-build-isolation -e .
	@touch $@

$(STAMPS)/extra-%: $(STAMPS)/package
	@echo "installing what 'make' needs for: $*"
	@LOOM_EXT=none $(PIP) --no-build-isolation -e '.[$*]'
	@touch $@

$(STAMPS)/native: $(STAMPS)/package setup.py $(NATIVE)
	@echo "building the native modules (some minutes; progress in build/chip.log and build/device.log)"
	@mkdir -p build
	@for module in chip device; do \
	  LOOM_EXT=$$module $(BIN)/python setup.py --quiet build_ext --inplace --build-temp build/$$module \
	    >build/$$module.log 2>&1 || { cat build/$$module.log >&2; exit 1; }; done
	@touch $@

clean:
	rm -rf build artifacts *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f torch_loom/*.so $(STAMPS)/native
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
