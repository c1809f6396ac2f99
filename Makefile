# The tasks of development, one word per task. A fresh machine needs git, make, gcc and python3 with
# venv; the tasks install the rest into .venv.
#
#   make run           the daemon on 127.0.0.1:8888, with ./workspace as the base dir
#                      (Ctrl-C drains and stops the daemon)
#   make test          all tests that run natively
#   make lint          ruff, mypy --strict, and the manifests
#   make test-gvisor   the conformance suite against a daemon inside gVisor (Debian, root)
#   make image         the container image, with podman
#   make bench         latency, throughput and memory, compared with a FastAPI baseline
#                      (two checkouts of execd: .venv/bin/python -m benchmarks.compare OLD NEW)
#   make clean         remove .venv and all build results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The install is editable: only a change of the C sources or of pyproject.toml needs a new install.
ENV := $(VENV)/made

# Python scripts without the suffix .py, which ruff does not find without help.
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
	rm -rf $(VENV) .cache build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		execd/proc/_spawn*.so
	find execd tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
