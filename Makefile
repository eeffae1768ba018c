# `make repro` and `make test` need Python 3.11, git, make and a package index; they install everything else.
PYTHON ?= python3.11
PROFILE ?= default
SET ?=
PORT ?= 5000
VENV := .venv
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export RAY_USAGE_STATS_ENABLED := 0
export MLFLOW_DISABLE_TELEMETRY := true
# Some environments, especially containers, tell Python not to keep bytecode. Each stage would then compile the 5,000
# modules that it imports, which takes 5 of the 8.5 seconds (CPU) in which the stage opens.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install compilers peers repro study study-page test test-all params ui docs lint format lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Create .venv with the locked dependencies

$(INSTALLED): requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not on the PATH; install Python 3.11 or run make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m singleshot.io.uv pip install -r requirements.lock
	touch $@

compilers: $(INSTALLED) ## Add the optional compilers to the benchmark: IREE, TVM's tuner, and TensorFlow in an environment of its own (3 GB)
	python -m singleshot.io.uv pip install -r requirements-compilers.lock
	python -m singleshot.export.environment

peers: $(INSTALLED) ## Add the libraries that benchmarks compare with, outside .venv (8 MB)
	python -m singleshot.io.uv pip install --no-deps --target build/peers -r requirements-peers.lock

repro: $(INSTALLED) ## Run the pipeline that params.yaml describes; later runs compute only what has changed
	@python -m pipelines.config.plain
	@python -m pipelines.engine.dvc_files
	dvc repro

# Tests of whole runs take longest and come first, in one process, while the others run the rest. Three processes keep two
# cores busy, as many tests wait for processes of their own.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(INSTALLED) ## Run the tests, without the slow ones
	pytest -m "not slow" $(PARALLEL)

test-all: $(INSTALLED) ## Run all tests
	pytest $(PARALLEL)

study: $(INSTALLED) ## Run the experiments behind docs/study (days on two cores), or go on where they were interrupted
	python -m pipelines study

study-page: $(INSTALLED) ## Write docs/study/README.md and its figures from the study's tables
	python -m pipelines study-page

params: $(INSTALLED) ## Compose params.yaml: make params PROFILE=smoke|default|study|paper [SET="executor=local …"]
	python -m pipelines params profile=$(PROFILE) $(SET)

ui: $(INSTALLED) ## Browse the runs in MLflow: make ui [PORT=5000]
	@python -m pipelines ui $(PORT)

docs: $(INSTALLED) ## Rewrite docs/configuration.md from the dataclasses and conf/
	python -m pipelines.config.reference

lint: $(INSTALLED) ## Check style, types and layers
	ruff check
	ruff format --check
	mypy
	lint-imports

format: $(INSTALLED) ## Format the code
	ruff check --fix --quiet
	ruff format

# PyTorch is locked without CUDA. Such a build comes from pip's index, or with UV_TORCH_BACKEND=cpu. As the build depends
# on the index, PyTorch is locked without hashes.
LOCKED := python -m singleshot.io.uv pip compile --quiet --custom-compile-command "make lock" --generate-hashes --upgrade-package torch

lock: $(INSTALLED) ## Rewrite the files requirements*.lock from the files requirements*.in
	$(LOCKED) --output-file requirements.lock requirements.in requirements-dev.in
	$(LOCKED) --output-file requirements-experts.lock requirements-experts.in
	$(LOCKED) --output-file requirements-compilers.lock requirements-compilers.in
	$(LOCKED) --output-file requirements-tensorflow.lock requirements-tensorflow.in
	$(LOCKED) --no-deps --output-file requirements-peers.lock requirements-peers.in
	sed -i -E '/^torch(vision)?==/,/# via/{/--hash/d; s/(\+cpu)? \\$$//}' requirements*.lock

clean: ## Remove the environment, caches and stage outputs; computed cells and MLflow's runs stay
	@$(PYTHON) -m pipelines.engine.turns rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis build report \
	    $(wildcard data/* models/* results/*/*)
