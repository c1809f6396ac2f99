# The tasks of development, one word per task. A fresh machine needs Linux with git, make, gcc, the
# headers of libc, and python3 (3.11 or newer) with venv. In Debian:
#
#     apt-get install git make gcc libc6-dev python3-venv
#
# The tasks install their packages into .venv: `make run` those of the daemon, `make test` and
# `make quick` those of the tests too, `make image`, `make audit` and `make clean` none, every other
# task all packages of development.
#
#   make run           the daemon on 127.0.0.1:8888, with ./workspace as the base dir
#                      (Ctrl-C drains and stops the daemon)
#   make test          all tests that run natively and need nothing of third parties
#   make test-clients  the tests with SDKs, frameworks, Ray, a browser, npm and pandas
#   make quick         the tests of pure modules and the repository's rules, in seconds
#   make explore       new examples of all that is random in the tests (SECONDS=600)
#   make client        write the generated files of clients/python anew
#   make clients       clients for Python, TypeScript and Go from the document; needs npm and Go
#   make soak          a long mixed load, then the model over deaths (SOAK_SECONDS=1200 each)
#   make lint          ruff, mypy --strict, the OpenAPI document, and the manifests
#   make mutants       planted bugs, each of which a test must find
#   make test-gvisor   the conformance suite against a daemon inside gVisor (Debian, root)
#   make image         the container image and its software bill of materials; needs podman, what
#                      `make tree` needs, and a registry (image/build; without a registry: image/make-base)
#   make tree          execd for any image, in build/tree: the folder, its .tar.zst, and the single
#                      file `execd` (needs Debian's gcc and zstd; ARCH=arm64 for the other
#                      architecture, after amd64: needs gcc-aarch64-linux-gnu too)
#   make tree-twice    make tree, and a second build elsewhere, which must make the same bytes
#   make tree-image    the same as an image FROM scratch, localhost/execd-tree (for arm64
#                      localhost/execd-tree:arm64); needs podman
#   make test-anywhere  the tree and the single file in images that have nothing of execd, natively and
#                      in gVisor (Debian, root; ROOTS="musl scratch" for some of the images)
#   make tree-lock     pin the Debian packages of the tree at the archive's versions
#   make audit         known vulnerabilities of the packages in the image; asks pypi.org, so no
#                      part of CI
#   make reference     write the generated sections of docs/, and llms.txt, anew
#   make docs          the site of docs/ in build/docs: HTML with the plots of the published figures,
#                      and each page as Markdown
#   make bench         execd beside FastAPI and peers: latency, throughput, CPU, memory, wake-ups
#                      (BENCH="--peers DIR --publish", then make reference; docs/benchmarks.md);
#                      two checkouts of execd: .venv/bin/python -m benchmarks.compare OLD NEW
#   make bench-sessions  Python sessions, compared with ipykernel
#   make clean         remove .venv and all build results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: $(DAEMON_ENV) says that .venv has what the daemon needs, $(TEST_ENV) that .venv also has
# what `make test` needs, $(ENV) that .venv has all packages of development, $(DOCS_ENV) that .venv
# also has the builder of the site. The install is editable: only a change of the C sources, of
# pyproject.toml, of the version or of the IPython lent to interpreters needs a new install.
DAEMON_ENV := $(VENV)/daemon
TEST_ENV := $(VENV)/tested
ENV := $(VENV)/made
DOCS_ENV := $(VENV)/docs
CLIENT := clients/python
WINGS := $(patsubst %/pyproject.toml,%,$(wildcard wings/*/pyproject.toml))
INSTALLED := $(WINGS:%=%/pyproject.toml) pyproject.toml requirements-dev.txt execd/__init__.py execd/proc/_spawn.c \
	execd/warden/_brake.c execd/warden/_children.c execd/warden/_spawner.c \
	execd/proc/_spawn.h execd/warden/_children.h execd/kernel/_orphan.c \
	image/make-ipython image/requirements-ipython-py39.txt image/requirements-ipython-py311.txt

# Python scripts without the suffix .py, which ruff does not find without help.
SCRIPTS := .ci/await .ci/suite .ci/verdict .ci/in-gvisor .ci/in-root image/tree/pack

.DEFAULT_GOAL := test
.PHONY: run test test-install test-clients quick explore client clients soak \
	mutants lint bench bench-sessions image tree tree-twice tree-image \
	tree-lock test-anywhere audit reference docs test-gvisor env clean

env: $(ENV)
test-install: $(TEST_ENV)

# What each install leaves in .venv, on the disk. tests/test_install_figures.py counts the first two.
DAEMON_FIGURES := 57 packages, 90 MB
TEST_FIGURES := 99 packages, 170 MB
ENV_FIGURES := 188 packages, 695 MB

$(DAEMON_ENV): $(INSTALLED)
	@echo "== make: install the daemon's packages into $(VENV) ($(DAEMON_FIGURES))"
	$(call install,.)
	touch $@

$(TEST_ENV): $(INSTALLED) $(CLIENT)/pyproject.toml
	@echo "== make: install what the tests need into $(VENV) ($(TEST_FIGURES))"
	$(call install,.[test])
	$(PIP_INSTALL) --editable '$(CLIENT)[cli]'
	touch $(DAEMON_ENV) $@

$(ENV): $(INSTALLED) $(CLIENT)/pyproject.toml
	@echo "== make: install all packages of development into $(VENV) ($(ENV_FIGURES))"
	$(call install,.[dev])
	$(PIP_INSTALL) --editable '$(CLIENT)[mcp]'
	touch $(DAEMON_ENV) $(TEST_ENV) $@

# The versions are those of requirements-dev.txt, which image/lock makes, so that two runs of one
# commit test the same. pip names each package that it downloads, because a slow download must not
# look like a hang. One setuptools builds execd and the wings, because an environment for the build of
# each would take most of the time.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check \
	--constraint requirements-dev.txt

define install
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --disable-pip-version-check --requirement image/requirements-build.txt
$(PIP_INSTALL) --no-build-isolation --editable '$(1)' $(WINGS:%=--editable %)
image/make-ipython $(BIN)/python $(VENV)/share/execd/ipython
endef

run: $(DAEMON_ENV)
	@echo "== make: start the daemon; Ctrl-C ends it"
	exec $(BIN)/execd serve

# A run starts thousands of interpreters, and without bytecode each of them compiles every module.
unexport PYTHONDONTWRITEBYTECODE

TEST_PROCESSES ?= 6

test: $(TEST_ENV)
	$(BIN)/python -m tests --processes $(TEST_PROCESSES)

# What these tests install for themselves, when they run for the first time, goes into .cache.
test-clients: $(ENV)
	$(BIN)/python -m tests clients --processes $(TEST_PROCESSES)

# Where schemathesis is installed, each process would import its plugin: a second of CPU, unused here.
quick: $(TEST_ENV)
	$(BIN)/python -m pytest -m quick --numprocesses 2 -p no:schemathesis

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
	for wing in $(notdir $(WINGS)); do \
		MYPYPATH=wings/$$wing $(BIN)/mypy --package execd_$$wing || exit; done
	$(BIN)/python -m tools.openapi --check
	$(BIN)/yamllint --strict --config-file image/.yamllint image

reference: $(ENV)
	$(BIN)/python -m tools.openapi
	$(BIN)/python -m docs.generate

$(DOCS_ENV): $(ENV)
	@echo "== make: install the builder of the site into $(VENV) (24 packages, 17 MB)"
	$(PIP_INSTALL) --editable '.[docs]'
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
	image/build $(if $(filter file,$(origin ARCH)),,--arch $(ARCH))

ARCH ?= amd64
TREES := build/tree

OF_TREE = $(ARCH) $(TREES)/$(ARCH) $(if $(filter-out amd64,$(ARCH)),$(TREES)/amd64)

tree:
	image/tree/build $(OF_TREE)
	image/tree/pack $(TREES)/$(ARCH) $(TREES)/$(ARCH).single \
		$(TREES)/execd-$(ARCH).tar.zst $(TREES)/execd-$(ARCH)

tree-twice: tree
	image/tree/twice $(OF_TREE)

tree-image: tree
	podman build --quiet --platform linux/$(ARCH) --build-arg ARCH=$(ARCH) \
		--label "org.opencontainers.image.revision=$$(sed -n s/^revision=//p $(TREES)/$(ARCH)/share/execd/origin)" \
		--tag localhost/execd-tree$(if $(filter-out amd64,$(ARCH)),:$(ARCH)) --file image/tree/Dockerfile $(TREES)

ROOTS ?=

test-anywhere: $(ENV)
	.ci/test-anywhere $(ROOTS)

tree-lock:
	for arch in amd64 arm64; do image/tree/lock $$arch || exit; done

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
	rm -rf $(VENV) .cache build *.egg-info clients/python/*.egg-info wings/*/*.egg-info wings/*/build \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis \
		execd/proc/_spawn*.so execd/kernel/_orphan*.so
	find execd wings tools tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
