# `make repro` and `make test` need Python 3.11 to 3.13, git, make and a package index; they install everything else.
SUPPORTED := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
PYTHON ?= $(shell for it in python3.11 python3.12 python3.13 python3; do $$it $(SUPPORTED) && echo $$it && break; done)
PROFILE ?= $(if $(FROM),,default)
PORT ?= 5000
VENV := .venv
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export RAY_USAGE_STATS_ENABLED := 0
# Some environments, especially containers, tell Python not to keep bytecode. Each stage would then compile the 5,000
# modules that it imports, which takes 5 of the 8.5 seconds (CPU) in which the stage opens.
export PYTHONDONTWRITEBYTECODE :=

# A virtual environment names its place and its interpreter. It can't be used after the checkout was renamed, or after an
# upgrade removed the interpreter: then this is the option of venv that makes it again.
HERE := $(shell cd $(VENV) 2>/dev/null && pwd -P)
MADE_BY := $(shell sed -n 's/^command = //p' $(VENV)/pyvenv.cfg 2>/dev/null)
BLANK := $(subst ,, )
MOVED := $(if $(MADE_BY),$(if $(findstring $(BLANK)$(HERE),$(MADE_BY)),,--clear))
OUTDATED := $(or $(MOVED),$(shell test ! -e $(VENV)/pyvenv.cfg || $(VENV)/bin/python -c '' 2>/dev/null || echo --clear))

# Text that goes to the shell unchanged.
quoted = '$(subst ','\'',$(1))'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install compilers repro study study-page test test-slow test-all params ui docs site lint format lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Create .venv with the locked dependencies and the command `singleshot`

ifneq ($(OUTDATED),)
.PHONY: $(VENV)/pyvenv.cfg
endif
$(VENV)/pyvenv.cfg:
	@$(or $(PYTHON),false) $(SUPPORTED) || { echo "error: $(if $(PYTHON),$(PYTHON) is not,the PATH has no) Python 3.11, 3.12 or 3.13; install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -z "$(OUTDATED)" || echo "$(VENV) was made in a different place, or with a Python that no longer exists: making it again"
	@test -e $(VENV) || rm -f $(VENV)
	$(PYTHON) -m venv $(OUTDATED) $(VENV)

$(INSTALLED): $(VENV)/pyvenv.cfg requirements.lock requirements-dev.lock
	sed -n "/^uv==/,/# via/p" requirements.lock | $(VENV)/bin/python -m pip install --quiet --require-hashes -r /dev/stdin
	$(VENV)/bin/python -m singleshot.io.uv pip install -r requirements.lock -r requirements-dev.lock
	$(VENV)/bin/python -m singleshot.io.uv pip install --no-deps --editable .
	$(VENV)/bin/python -m pipelines.engine.dvc_files
	touch $@

compilers: $(INSTALLED) ## Add the optional compilers to the benchmark: IREE, and TensorFlow in its own environment (3 GB)
	python -m singleshot.io.uv pip install -r requirements-compilers.lock
	built="$$(python -m singleshot.export.environment)" && { test -e "$$built/complete" \
	  || { rm -rf "$$built" && python -m singleshot.io.uv venv --quiet "$$built" \
	  && python -m singleshot.io.uv pip install --python "$$built/bin/python" -r requirements-tensorflow.lock \
	  && touch "$$built/complete"; }; }

repro: $(INSTALLED) ## Run the pipeline that params.yaml describes; later runs compute only what has changed
	@python -m pipelines.engine.dvc_files
	python -m dvc repro || { python -m pipelines.engine.disks; exit 1; }

# Tests of whole runs take longest and come first, in one process, while the others run the rest. Three processes keep two
# cores busy, because many tests wait for processes that they start.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(INSTALLED) ## Run the tests, without the slow ones
	python -m pytest -m "not slow" $(PARALLEL)

test-slow: $(INSTALLED) ## Run only the slow tests
	python -m pytest -m slow $(PARALLEL)

test-all: $(INSTALLED) ## Run all tests
	python -m pytest $(PARALLEL)

study: $(INSTALLED) ## Run the experiments behind docs/study (days on two cores), or continue where they were interrupted
	python -m pipelines study

study-page: $(INSTALLED) ## Fill the pages of docs/study from its tables, and draw their figures
	python docs/study/make_page.py

# SET goes through the environment, because a text may have several lines, and isn't echoed, because an address may have
# a password.
params: export SETTINGS := $(value SET)
params: $(INSTALLED) ## Compose params.yaml: make params [PROFILE=smoke|default|study|paper] [FROM=mine.yaml] [SET="executor=local …"]
	@python -m pipelines params $(if $(FROM),--from=$(call quoted,$(value FROM))) --set="$$SETTINGS" \
	    $(if $(PROFILE),$(call quoted,profile=$(PROFILE)))

ui: $(INSTALLED) ## Browse the runs in MLflow: make ui [PORT=5000]
	@python -m pipelines ui --port $(PORT)

docs: $(INSTALLED) ## Rewrite docs/configuration.md from the dataclasses and conf/
	python -m pipelines.config.reference

site: export NO_MKDOCS_2_WARNING := 1
site: $(INSTALLED) ## Build build/site: docs/ as a site, with the library's reference
	python -m mkdocs build --strict --quiet

lint: $(INSTALLED) ## Check style, types, layers, and the files of images and clusters
	python -m ruff check
	python -m ruff format --check
	python -m mypy
	python -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'
	yamllint --strict --config-data '{extends: relaxed, rules: {line-length: {max: 120, allow-non-breakable-words: false}}}' compose.yaml conf/cluster
	check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	hadolint --no-color Dockerfile

format: $(INSTALLED) ## Format the code
	python -m ruff check --fix --quiet
	python -m ruff format

# PyTorch is locked without CUDA. Such a build comes from pip's index, or with UV_TORCH_BACKEND=cpu. As the build depends
# on the index, PyTorch is locked without hashes.
LOCKED := python -m singleshot.io.uv pip compile --quiet --custom-compile-command "make lock" --generate-hashes --upgrade-package torch

lock: $(INSTALLED) ## Rewrite the files requirements*.lock from pyproject.toml and the files requirements*.in
	$(LOCKED) --all-extras --output-file requirements.lock pyproject.toml requirements.in
	$(LOCKED) --output-file requirements-dev.lock requirements-dev.in
	$(LOCKED) --output-file requirements-experts.lock requirements-experts.in
	$(LOCKED) --output-file requirements-compilers.lock requirements-compilers.in
	$(LOCKED) --output-file requirements-tensorflow.lock requirements-tensorflow.in
	sed -i -E '/^torch(vision)?==/,/# via/{/--hash/d; s/(\+cpu)? \\$$//}' requirements*.lock

clean: ## Remove the environment, caches and outputs of stages; computed cells and MLflow's runs stay
	rm -rf $(VENV) .dvc-site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis build report \
	    $(wildcard data/* models/* results/*/*)
