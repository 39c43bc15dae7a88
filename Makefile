# What people type: make demo, make test.  Both build what they need first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
QUIET := --quiet --disable-pip-version-check --no-input --no-warn-script-location
# nvcc from the PATH, else from the PyPI wheels of CUDA 13.
NVCC_EXTRA := $(if $(shell command -v nvcc 2>/dev/null),,[nvcc])

.PHONY: help build native demo test lint check-programs check-pytorch lab-image check-lab check-containers check-arm64 campaign fuzz-smoke asan tsan clean

help:
	@echo 'make demo         start a cluster on this machine, run CUDA programs on a node without a GPU, stop it'
	@echo 'make test         all tests that can run here (about twenty minutes on two cores)'
	@echo 'make build        the virtual environment in .venv with the farbus command, and the native parts'
	@echo 'make check-programs  every CUDA program of tests/programs on the software GPU, directly and over each transport (twenty minutes when none is compiled), 10^5 of each object, and those that race 50 times'
	@echo 'make check-pytorch  PyTorch from PyPI on the software GPU, operation by operation (installs 5.5 GB in .venv-pytorch)'
	@echo 'make check-lab    tests in virtual machines with real systemd (no privileges or acceleration needed; some hours on two cores)'
	@echo 'make lab-image    the image of those machines alone (two minutes); make test boots one where it is there'
	@echo 'make check-containers  containers of podman and of Docker with remote GPUs, as root (fetches Docker of a newer Debian, installs podman, runc and musl-tools)'
	@echo 'make check-arm64  native parts built for arm64, and its programs in an emulator, as root (installs gcc-aarch64-linux-gnu and qemu-user-static)'
	@echo 'make campaign     property tests with new random examples, ROUNDS=20 times (a minute or two each)'
	@echo 'make lint         ruff, mypy and the import contracts alone'
	@echo 'make asan         the native tests under the address and undefined-behaviour sanitizers'
	@echo 'make tsan         remoting under ThreadSanitizer'
	@echo 'make fuzz-smoke   each fuzzer for 30 s'
	@echo 'make clean        remove everything that was built'

# The environment comes while the native parts are compiled.
build: $(VENV)/.prerequisites
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(VENV)/.stamp native
	@$(BIN)/python native/ffi_build.py

$(VENV)/.prerequisites: .ci/prerequisites
	@PYTHON=$(PYTHON) .ci/prerequisites
	@mkdir -p $(VENV)
	@touch $@

# setuptools warns of every editable installation; this one is meant.
$(VENV)/.stamp: pyproject.toml setup.py | $(VENV)/.prerequisites
	@echo 'farbus: making the virtual environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(QUIET) --upgrade 'pip>=25.1' 'setuptools>=77' 'cffi>=1.17'
	@PYTHONWARNINGS='ignore:Editable installation' FARBUS_NATIVE=0 $(BIN)/python -m pip install $(QUIET) --no-build-isolation --editable '.$(NVCC_EXTRA)' --group dev
	@touch $@

native: | $(VENV)/.prerequisites
	@$(MAKE) --no-print-directory -s -q -C native || { \
		echo 'farbus: building the native parts'; native/progress $(MAKE) --no-print-directory -s -C native; }

demo: build
	@$(BIN)/farbus demo

# The order of sets of strings goes by the hash seed: with one seed, the model tests take the same examples each time.
# A process for each processor, each with files of its own; with more than four the compilers would want the memory.
# WORKERS=0: one test behind the other, which takes twice as long and leaves less to the scheduler of the machine.
# Their files are in memory where it has room (.ci/in-memory); with TMPDIR they are there, and stay.
WORKERS ?= auto
test: build
	@PYTHONHASHSEED=0 .ci/in-memory $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4 --dist loadfile

lint: build
	@$(BIN)/python -m pytest -q tests/test_repository.py

# Which programs are compiled for make test, and which only here: tests/softgpu/test_programs.py.
check-programs: build
	@FARBUS_ALL_PROGRAMS=1 $(BIN)/python -m pytest -q tests/softgpu/test_programs.py tests/remoting/test_coverage.py tests/remoting/test_suite.py
	@FARBUS_CHURN=100000 $(BIN)/python -m pytest -q tests/remoting/test_churn.py
	@FARBUS_STRESS=50 $(BIN)/python -m pytest -q tests/remoting/test_stress.py

# PyTorch in an environment of its own, which FARBUS_PYTORCH names: tests/pytorch.
FARBUS_PYTORCH ?= $(CURDIR)/$(VENV)-pytorch
check-pytorch: build
	@$(PYTHON) tests/pytorch/environment.py '$(FARBUS_PYTORCH)'
	@FARBUS_PYTORCH='$(FARBUS_PYTORCH)' $(BIN)/python -m pytest -q -s tests/pytorch

# Other examples than make test takes, and each time others: ROUNDS times over.
ROUNDS ?= 20
campaign: build
	@for round in $$(seq $(ROUNDS)); do \
		echo "farbus: round $$round of $(ROUNDS)"; \
		FARBUS_CAMPAIGN=1 $(BIN)/python -m pytest -q -m hypothesis || exit 1; \
	done

# Debian guests in QEMU: tests/lab.
lab-image: build
	@$(BIN)/python -m tests.lab.image

check-lab: build
	@FARBUS_LAB=1 $(BIN)/python -m pytest -q tests/lab

# On this machine: tests/end_to_end/engines.py.
check-containers: build
	@$(BIN)/python -m tests.end_to_end.engines
	@$(BIN)/python -m pytest -q -rs tests/end_to_end/test_containers.py

# Programs of arm64 in an emulator, with the software GPU of their own machine and with this one's: tests/harness/arm64.py.
check-arm64: build
	@$(BIN)/python -m tests.harness.arm64

asan tsan fuzz-smoke: build
	@$(MAKE) --no-print-directory -j$(JOBS) -C native $@ PYTHON=$(CURDIR)/$(BIN)/python

clean:
	@rm -rf $(VENV) build dist *.egg-info native/build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@rm -f remoting/_server*.so* scheduler/_kernels*.so*
