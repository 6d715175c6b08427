# make sweep, make test ... : each sets up .venv as far as it needs, once.
# PYTHON=python3.12 make test chooses the interpreter; SWEEP="conf/sweep/digits_cnn.toml --trials 8" what make sweep runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SWEEP ?=
SOAK ?=
SEARCH ?=
GPU ?=
UI_HOST ?= 127.0.0.1
UI_PORT ?= 5000

WHEELS ?= .[torch]
WHEELHOUSE ?= wheelhouse

.PHONY: sweep test test-failed test-all soak lint docs reference ui wheelhouse bench bench-fused bench-search bench-pack bench-train bench-cluster bench-slurm bench-gpu clean

sweep: $(VENV)/installed-torch
	$(BIN)/python -m raygpu.sweep $(SWEEP)

# Files are spread over three processes, which keep two cores busy: a test of a whole run often waits for Ray.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/installed-dev
	$(PYTEST) --hypothesis-profile quick -m "not slow and not gpu"

# Only what failed the last time, one test after the other: other work on the machine can hold up a test for too long.
test-failed: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not gpu" --last-failed --last-failed-no-failures none

# Whole trainings and killed workers, a rehearsed Kubernetes, 20 workers on a simulated cluster, too: these wait longer.
test-all: $(VENV)/installed-dev
	$(PYTEST) --numprocesses 4 -m "not gpu"

# Twenty minutes of small sweeps under random faults, each audited: SOAK="--seed 7 --rounds 1" repeats a round.
soak: $(VENV)/installed-dev
	$(BIN)/python -m tests.soak $(SOAK)

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site of README.md and docs/, into site/: a link, an anchor or an image that leads nowhere ends the build.
docs: $(VENV)/installed-docs
	$(BIN)/python docs/build_site.py

# docs/reference/, from the schemas and the docstrings.
reference: $(VENV)/installed-torch
	$(BIN)/python docs/write_reference.py

# It knows no users, so it listens on this machine alone.
ui: $(VENV)/installed-torch
	@case '$(UI_HOST)' in \
	127.*|localhost|::1) ;; \
	*) echo 'make ui: UI_HOST=$(UI_HOST): this MLflow has no passwords, so on 127.0.0.1 alone; from another machine:' \
	  'ssh -L $(UI_PORT):127.0.0.1:$(UI_PORT), or an MLflow with users: deploy/compose.yaml' >&2; exit 2;; \
	esac
	mkdir -p runs
	$(BIN)/mlflow ui --backend-store-uri sqlite:///runs/mlflow.db --host $(UI_HOST) --port $(UI_PORT)

# Wheels of raygpu and of all that it needs, for nodes without internet: docs/slurm.md. WHEELS="--no-deps ." makes
# raygpu's alone, where the cluster has a wheelhouse of its own.
wheelhouse: | $(BIN)/python
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt \
		--wheel-dir $(WHEELHOUSE) $(WHEELS)
	@echo "$(WHEELHOUSE): $$(ls $(WHEELHOUSE) | wc -l) wheels"

bench: $(VENV)/installed-torch
	$(BIN)/python -m experiments.benchmarks.sweep_overhead
	$(BIN)/python -m experiments.benchmarks.time_left

# More than an hour on two cores that have nothing else to do.
bench-fused: $(VENV)/installed-torch
	$(BIN)/python -m experiments.benchmarks.fused_throughput
	$(BIN)/python -m experiments.benchmarks.fused_sweep
	$(BIN)/python -m experiments.benchmarks.busy_core

# A night: seven seeds of four problems by every searcher, a minute each, and how far winners can be trusted. Keras Tuner
# takes part after `pip install keras-tuner tensorboard`. SEARCH="--go-on" keeps what an interrupted run has done.
bench-search: $(VENV)/installed-dev
	$(BIN)/python -m experiments.benchmarks.search_quality $(SEARCH)
	$(BIN)/python -m experiments.benchmarks.search_trust

# An hour on two cores that have nothing else to do: whether auto chooses well, predictions hold and caps hold; and
# what packed trainings gain by decoding each image once.
bench-pack: $(VENV)/installed-dev
	$(BIN)/python -m experiments.benchmarks.auto_choice
	$(BIN)/python -m experiments.benchmarks.pack --rounds 7 --most 89
	$(BIN)/python -m experiments.benchmarks.pack --rounds 7 --window-s 1.5 --ways process,fused \
		--numbers 1,2,3,4,5,6,8,10,13,16,21
	$(BIN)/python -m experiments.benchmarks.greedy
	$(BIN)/python -m experiments.benchmarks.image_loading

# An hour on two cores that have nothing else to do: gradients and throughput of ranks of unequal speed, the same training
# by hand, killed workers, and one to four workers on one node and two.
bench-train: $(VENV)/installed-dev
	$(BIN)/python -m experiments.benchmarks.weighted_gradient
	$(BIN)/python -m experiments.benchmarks.unequal
	$(BIN)/python -m experiments.benchmarks.production --devices simulated --rounds 7 --seconds 6
	$(BIN)/python -m experiments.benchmarks.killed
	$(BIN)/python -m experiments.benchmarks.workers

# A quarter of an hour, with PostgreSQL and kubectl: a submitted sweep, and what becomes of trials when something is lost.
bench-cluster: $(VENV)/installed-dev
	$(BIN)/python -m experiments.benchmarks.cluster

# A quarter of an hour, with slurm-wlm and munge: a sweep submitted to Slurm beside the same in place, and what a short
# wall time costs.
bench-slurm: $(VENV)/installed-dev
	$(BIN)/python -m experiments.benchmarks.slurm

# On an NVIDIA GPU, in stages of nine minutes at most, each with records of its own: tests, sweeps, arrays, packed
# processes with and without MPS, what auto chooses, production, a profile. GPU="--minutes 9.5" goes on where the last
# call ended; GPU="--device cpu" tries all of it out.
bench-gpu: $(VENV)/installed-dev
	$(BIN)/python -m experiments.benchmarks.gpu --minutes 0 $(GPU)

# MkDocs alone: the site is built from the pages, without raygpu.
$(VENV)/installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) $$($(BIN)/python -c "import tomllib; print(*tomllib.load( \
		open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	touch $@

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than what it was made from, so that a second call installs nothing.
$(VENV)/installed-torch: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing torch, Ray and MLflow into $(VENV): some GB, minutes the first time'
	$(PIP) --editable '.[torch]'
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing torch, TensorFlow, Ray and MLflow into $(VENV): some GB, minutes the first time'
	$(PIP) --editable '.[all,dev]'
	touch $@ $(VENV)/installed-torch
