# make demo: see it work.  make test: everything.  make test-uvicorn: the relay on uvicorn.  All set up what they need.
PYTHON ?= python3
BIN := .venv/bin
# Passed on to pip, so that a machine without a GPU can take PyTorch's small CPU build (see README).
PIP_ARGS ?=
export PIP_ARGS
# Test processes; each runs whole files.
TEST_PROCESSES ?= 2
MODEL := smollm2-135m-instruct

.PHONY: setup demo test test-uvicorn style types services format

setup: .venv/.packages .venv/.model

demo: setup
	@$(BIN)/python manage.py demo

test: setup .venv/.dev
	@$(BIN)/python -m tests.lab.services
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# The relay's tests once more, on another server.
test-uvicorn: setup .venv/.dev
	RELAY_TEST_SERVER=uvicorn $(BIN)/python -m pytest tests/relay/test_tunnel.py tests/relay/test_stalls.py \
	  tests/relay/test_interop.py tests/relay/test_doors.py

style: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/.dev
	$(BIN)/mypy --num-workers 2 .

services:
	@$(PYTHON) -m tests.lab.services --install

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Meshnet needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing. Install it with: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.packages: requirements.txt requirements/server.txt requirements/node.txt | .venv/bin/python
	$(BIN)/pip install --disable-pip-version-check $(PIP_ARGS) -r requirements.txt
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.packages
	$(BIN)/pip install --disable-pip-version-check --quiet $(PIP_ARGS) -r requirements/dev.txt
	@touch $@

.venv/.model: .venv/.packages
	$(BIN)/python manage.py fetchmodel $(MODEL)
	@touch $@
