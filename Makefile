# The short way in: `make run` trains, `make test` tests. Both make the environment they need.
#   make PYTHON=python3.12 …   another interpreter        make VENV=path …   another environment

PYTHON ?= python3
VENV ?= .venv
# uv, else pip (.ci/install):             make INSTALLER=pip …
INSTALLER ?= uv
# PyTorch without CUDA, a tenth of the download:  make CPU=1 …  (uv), or with pip
#   make TORCH_INDEX=URL …  where URL is the CPU index that pytorch.org's install page names
CPU ?=
TORCH_INDEX ?=
BIN := $(VENV)/bin
INSTALL = INSTALLER=$(INSTALLER) CPU=$(CPU) TORCH_INDEX=$(TORCH_INDEX) sh .ci/install $(BIN)/python
# Inside the environment, so that it goes with it and one environment serves every target.
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.installed-dev

export FLWR_TELEMETRY_ENABLED ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install run test test-slow test-deploy test-tutorial lint docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

install: $(TOOLS) ## make the virtual environment, with the app and the development tools

run: $(INSTALLED) ## train HFMDS-FL and FedAvg on the embedded digits and compare them
	$(BIN)/fedsyn demo

test: install ## run the test suite
	$(BIN)/pytest

test-slow: install ## run the tests that take longer than `make test` should (minutes)
	$(BIN)/pytest -m 'slow and not deploy'

test-deploy: install ## test a real SuperLink with TLS and SuperNodes on this machine (minutes)
	$(BIN)/pytest -m deploy

test-tutorial: install ## run every command of docs/tutorial.md (minutes)
	$(BIN)/pytest -m tutorial

lint: install ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install ## build docs/ and the API into site/, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

clean: ## remove caches and build products, not the environment and not results
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(INSTALL) .
	@touch $@

$(TOOLS): pyproject.toml | $(BIN)/python
	$(INSTALL) '.[dev]'
	@touch $(INSTALLED) $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.11 …" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
