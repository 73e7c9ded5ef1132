# Evertick. `make up` runs the whole system on this machine, `make test` checks it.
# Everything is installed into .venv; Debian packages only where we are root and apt is there.

VENV    := .venv
PYTHON  ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN     := $(VENV)/bin
SOURCES := schemas bus collectors streams remediators history lab evertick tests

# Where byte code may not be written every start compiles anew, which takes longer than the start.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help up lab test lint bench clean packages

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(VENV)/.embedded  ## Run the whole system here; Ctrl-C stops it
	@exec $(BIN)/evertick up $(ARGS)

lab: packages $(VENV)/.embedded  ## Break links under a running job, with Evertick and without; needs root
	@exec $(BIN)/evertick lab $(ARGS)

test: packages $(VENV)/.dev  ## Check everything; skips by name what this machine cannot do
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev  ## Style, types, who may import whom
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev  ## Print every figure
	$(BIN)/evertick bench pipeline $(ARGS)

clean:  ## Remove the virtual environment (the data folder stays)
	rm -rf $(VENV)

packages:
	@sh .ci/packages ip iproute2 nft nftables \
	    clang clang llvm-strip llvm /usr/include/bpf/bpf_helpers.h libbpf-dev

$(VENV)/bin/uv:
	@test -n "$(PYTHON)" || { echo "Evertick needs Python 3.11 or later; install python3"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Evertick needs Python 3.11 or later; $(PYTHON) is older. Name one: make PYTHON=/path"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh .ci/packages '' python3-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(VENV)/.embedded: pyproject.toml constraints.txt | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[embedded]'
	@$(BIN)/python -m compileall -q $(filter-out tests,$(SOURCES))
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -q $(SOURCES)
	@touch $@ $(VENV)/.embedded
