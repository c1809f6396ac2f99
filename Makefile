# The tasks of development, one word per task. A fresh machine needs git, make, gcc and python3 with
# venv; the tasks install the rest into .venv: `make run` the packages of the daemon, every other
# task the packages of development too.
#
#   make run           the daemon on 127.0.0.1:8888, with ./workspace as the base dir
#                      (Ctrl-C drains and stops the daemon)
#   make test          all tests that run natively
#   make quick         the tests of pure modules and the repository's rules, in seconds
#   make explore       new examples of all that is random in the tests (SECONDS=600)
#   make client        write the generated files of clients/python anew
#   make clients       clients for Python, TypeScript and Go from the document; needs npm and Go
#   make soak          a long mixed load, then the model over deaths (SOAK_SECONDS=1200 each)
#   make lint          ruff, mypy --strict, and the manifests
#   make mutants       planted bugs, each of which a test must find
#   make test-gvisor   the conformance suite against a daemon inside gVisor (Debian, root)
#   make image         the container image and its software bill of materials, with podman
#   make audit         known vulnerabilities of the packages in the image; asks pypi.org, so no
#                      part of CI
#   make reference     write the generated sections of docs/, and llms.txt, anew
#   make docs          the site of docs/ in build/docs: HTML, and each page as Markdown
#   make bench         execd beside FastAPI and peers: latency, throughput, CPU, memory, wake-ups
#                      (BENCH="--peers DIR --publish"; docs/benchmarks.md); two checkouts of
#                      execd: .venv/bin/python -m benchmarks.compare OLD NEW
#   make bench-sessions  Python sessions, compared with ipykernel
#   make clean         remove .venv and all build results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: $(DAEMON_ENV) says that .venv has what the daemon needs, $(ENV) that .venv has the
# packages of development too, $(DOCS_ENV) that .venv also has the builder of the site. The install
# is editable: only a change of the C sources, of pyproject.toml, of the version or of the IPython
# lent to interpreters needs a new install.
DAEMON_ENV := $(VENV)/daemon
ENV := $(VENV)/made
DOCS_ENV := $(VENV)/docs
CLIENT := clients/python
INSTALLED := pyproject.toml execd/__init__.py execd/proc/_spawn.c execd/warden/_brake.c \
	execd/warden/_children.c execd/warden/_early_end.c execd/warden/_quick_starts.c \
	execd/proc/_spawn.h execd/warden/_children.h execd/warden/_early_end.h execd/kernel/_orphan.c \
	image/make-ipython image/requirements-ipython-py39.txt image/requirements-ipython-py311.txt

# Python scripts without the suffix .py, which ruff does not find without help.
SCRIPTS := .ci/await .ci/suite .ci/verdict .ci/in-gvisor image/sbom image/link-copies

.DEFAULT_GOAL := test
.PHONY: run test fetched test-daemons test-engine test-memory quick explore client clients soak \
	mutants lint bench bench-sessions image audit reference docs test-gvisor env clean

env: $(ENV)

$(DAEMON_ENV): $(INSTALLED)
	@echo "== make: install the daemon's packages into $(VENV) (48 packages, 20 MB)"
	$(call install,.)
	touch $@

$(ENV): $(INSTALLED) $(CLIENT)/pyproject.toml
	@echo "== make: install the packages of the daemon and of development into $(VENV)" \
		"(174 packages, 140 MB)"
	$(call install,.[dev])
	$(BIN)/python -m pip install --disable-pip-version-check --editable '$(CLIENT)[mcp]'
	touch $(DAEMON_ENV) $@

# pip names each package that it downloads, because a slow download must not look like a hang.
define install
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --disable-pip-version-check --editable '$(1)'
image/make-ipython $(BIN)/python $(VENV)/share/execd/ipython
endef

run: $(DAEMON_ENV)
	@echo "== make: start the daemon; Ctrl-C ends it"
	exec $(BIN)/execd serve

# A run starts thousands of interpreters, and without bytecode each of them compiles every module.
unexport PYTHONDONTWRITEBYTECODE

# Three runs. In the second, engines run in the tests' processes, and an engine would take a daemon
# that the same process has started for a leftover; so the tests of daemons run apart. The tests
# marked `alone` measure the memory or the disk of the whole machine, so nothing runs beside them.
# Most tests wait most of the time: six processes keep two CPUs busy. tests/conftest.py puts the
# files in order.
TEST_PROCESSES ?= 6
AT_ONCE := --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
DAEMONS := tests/browser tests/client tests/conformance tests/dialects tests/difference \
	tests/model tests/openapi tests/readers tests/sdk tests/soak tests/test_examples.py tests/test_guide.py \
	tests/test_reference.py

.NOTPARALLEL:

test: fetched test-daemons test-engine test-memory

fetched:
	@echo "== make: the tests of the SDKs and of Ray fetch k8s-agent-sandbox (three releases)," \
		"the SDKs of E2B and OpenSandbox, OpenSandbox's server (270 MB)," \
		"three frameworks of agents and Ray into .cache/ when they run for the first time"

test-daemons: $(ENV)
	$(BIN)/python -m pytest $(AT_ONCE) -m "not alone" $(DAEMONS)

test-engine: $(ENV)
	$(BIN)/python -m pytest $(AT_ONCE) -m "not alone" $(addprefix --ignore=,$(DAEMONS))

test-memory: $(ENV)
	$(BIN)/python -m pytest -m alone

quick: $(ENV)
	$(BIN)/python -m pytest -m quick --numprocesses 2

SECONDS ?= 600

explore: $(ENV)
	$(BIN)/python -m tests.explore --seconds $(SECONDS)

client: $(ENV)
	$(BIN)/python $(CLIENT)/generator/models.py
	$(BIN)/python $(CLIENT)/generator/blocking.py

clients: $(ENV)
	tests/openapi/generate-clients

SOAK_SECONDS ?= 1200

soak: $(ENV)
	$(BIN)/python -m benchmarks.soak --seconds $(SOAK_SECONDS)
	$(BIN)/python -m tests.model --seconds $(SOAK_SECONDS)

mutants: $(ENV)
	$(BIN)/python -m tests.mutants

lint: $(ENV)
	$(BIN)/ruff check . $(SCRIPTS)
	$(BIN)/ruff format --check . $(SCRIPTS)
	$(BIN)/mypy
	$(BIN)/yamllint --strict --config-file image/.yamllint image

reference: $(ENV)
	$(BIN)/python -m docs.generate

$(DOCS_ENV): $(ENV)
	@echo "== make: install the builder of the site into $(VENV) (24 packages, 17 MB)"
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[docs]'
	touch $@

SITE := build/docs

# A warning is an error, and so is a link that Sphinx cannot resolve. site_links looks at the
# result.
docs: $(DOCS_ENV)
	$(BIN)/python -m docs.generate --check
	rm -rf $(SITE)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going \
		--conf-dir docs --doctree-dir .cache/doctrees . $(SITE)
	$(BIN)/python -m docs.generate.site_links $(SITE)

BENCH ?=

bench: $(ENV)
	$(BIN)/python -m benchmarks $(BENCH)

bench-sessions: $(ENV)
	$(BIN)/python -m benchmarks.sessions

image:
	image/build

# Only pins with hashes are read, so pip has nothing to resolve. --strict: a package that could not
# be looked up is a failure.
AUDIT := .cache/audit
PINS := requirements-execd requirements requirements-ipython-py39 requirements-ipython-py311 \
	tools-sbom

audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --disable-pip-version-check --require-hashes \
		--only-binary :all: -r image/tools-audit.txt
	$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes \
		$(PINS:%=--requirement image/%.txt)

test-gvisor:
	.ci/test-gvisor

clean:
	rm -rf $(VENV) .cache build *.egg-info clients/python/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		execd/proc/_spawn*.so execd/kernel/_orphan*.so
	find execd tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
