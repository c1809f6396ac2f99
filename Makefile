# Working on execd: one word a task. A fresh machine needs git, make, gcc and python3 with venv; the rest goes into .venv.
#
#   make run           the daemon on 127.0.0.1:8888, with ./workspace as its base dir (Ctrl-C drains and stops it)
#   make test          everything that runs natively
#   make lint          ruff, mypy --strict, and the manifests
#   make test-gvisor   the conformance suite against a daemon inside gVisor (Debian, root)
#   make image         the container image, with podman
#   make bench         latency, throughput and memory, beside a FastAPI baseline
#                      (two checkouts of execd: .venv/bin/python -m benchmarks.compare OLD NEW)
#   make clean         forget .venv and everything built

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An editable install: only what is compiled, or says what to install, calls for a new one.
ENV := $(VENV)/made

# Python without a .py, which ruff would pass over.
SCRIPTS := .ci/await .ci/count .ci/in-gvisor

.DEFAULT_GOAL := test
.PHONY: run test lint bench image test-gvisor env clean

env: $(ENV)

$(ENV): pyproject.toml execd/proc/_spawn.c execd/warden/_brake.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

run: $(ENV)
	exec $(BIN)/execd serve

test: $(ENV)
	$(BIN)/python -m pytest

lint: $(ENV)
	$(BIN)/ruff check . $(SCRIPTS)
	$(BIN)/ruff format --check . $(SCRIPTS)
	$(BIN)/mypy
	$(BIN)/yamllint --strict --config-file image/.yamllint image

bench: $(ENV)
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.sessions

image:
	image/build

test-gvisor:
	.ci/test-gvisor

clean:
	rm -rf $(VENV) .cache build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis execd/proc/_spawn*.so
	find execd tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
