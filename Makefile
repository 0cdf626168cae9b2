# `make up` runs the product, `make test` its tests; each installs what it needs first.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-dev install-tests up down lint check warm-up test unit-tests other-tests test-slow test-thorough test-vllm test-twin test-netns test-all chaos flake smoke client lock clean
BIN := .venv/bin
# Byte code is kept whatever the caller's shell says: some hundred processes of a test run would each compile all sources.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/pytest -q
QUICK := -m "not slow and not gpu and not vllm"
SLOW := -m "slow and not gpu and not vllm and not twin and not chaos"
# Missing migrations are found without a database; that its history was not looked at is no news.
NO_DATABASE := $(BIN)/python -W ignore::RuntimeWarning:django.core.management.commands.makemigrations

help:
	@echo "make up         install what is missing and run GreenServe (Ctrl-C stops it)"
	@echo "make down       stop a GreenServe that runs in the background or another terminal"
	@echo "make test       the tests that hold each change: twelve minutes on two processors, needs no running services"
	@echo "make test-slow, test-thorough, test-vllm, test-twin  the long ones of each kind; which change calls for which: docs/testing.md"
	@echo "make test-all   lint and all of these"
	@echo "make test-netns  docs/production.md on machines of its own, and faults there; as root, half an hour"
	@echo "make chaos      faults of the running demo, in eight parts, and the table of docs/faults.md; make chaos PART=2"
	@echo "make flake TEST=tests/unit/pools/gateway N=50  how often tests fail on a busy machine"
	@echo "make smoke      what a newcomer does, on a fresh clone of what is committed"
	@echo "make client     make the typed client again after a change of the REST API"
	@echo "make lint       format, lint, types, import rule, the drawing of the house, words, Django checks, migrations"
	@echo "make check      make lint, then the unit tests"
	@echo "make install    only install; make lock  renew the locks; make clean  remove what make made, but no data"

install:
	@scripts/install run

install-dev:
	@scripts/install dev

install-tests: install-dev
	@scripts/install focus

up: install
	@$(BIN)/greenserve up

down: install
	@$(BIN)/greenserve down

lint: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --no-error-summary .
	$(BIN)/lint-imports
	$(BIN)/python scripts/house --check
	$(BIN)/python scripts/words
	$(BIN)/python manage.py check --fail-level WARNING
	$(NO_DATABASE) manage.py makemigrations --check --dry-run

check: lint install-tests
	$(PYTEST) tests/unit $(QUICK)

# What each test process would do first, compiling, is done once before: the simulator, and the sources with the tests.
COLLECTED := test-artifacts/collected.txt
warm-up: $(COLLECTED)

$(COLLECTED): $(shell find core frontend greenserve pools scheduler scripts telemetry tests -name '*.py') | install-tests
	@mkdir -p $(@D)
	@$(BIN)/python scripts/warm_up & $(PYTEST) tests --collect-only $(QUICK) >$@ || { tail -n 40 $@; wait; exit 1; }; wait

# Four at a time on two processors: those with databases, processes and browsers mostly wait. Each process collects all that
# it may be given, so unit tests have one to themselves, whose output comes when it has ended. A file's tests stay together,
# since they share what is costly.
test: warm-up
	@scripts/browser
	@$(MAKE) --no-print-directory -j2 unit-tests other-tests

unit-tests:
	@$(PYTEST) tests/unit --times $(QUICK) --junit-xml=test-artifacts/unit.xml >test-artifacts/unit.txt; \
	status=$$?; cat test-artifacts/unit.txt; exit $$status

other-tests:
	$(PYTEST) tests --ignore=tests/unit -n 3 --dist loadfile --no-loadscope-reorder --times $(QUICK) --junit-xml=test-artifacts/test.xml

# The long tests of each kind, two at a time: many start whole products.
test-slow: install-dev
	@scripts/browser
	@mkdir -p test-artifacts
	$(PYTEST) tests -n 2 --dist loadfile --no-loadscope-reorder --times $(SLOW) --junit-xml=test-artifacts/test-slow.xml

# Laws that are held for a few random cases at each change, for hundreds of them.
test-thorough: install-dev
	@$(BIN)/python scripts/warm_up
	$(PYTEST) -n 2 tests/unit -m "hypothesis and not slow and not gpu and not vllm" --hypothesis-profile=thorough
	$(PYTEST) tests/unit/pools/gateway/test_fuzz.py --hypothesis-profile=fuzz

# Where a vLLM for CPUs is not to be had (3), it is said what to supply, and what is skipped for that reason.
test-vllm: install-dev
	@mkdir -p test-artifacts
	@scripts/install vllm; case $$? in \
	  0) $(PYTEST) tests/vllm -m vllm --durations=20 --junit-xml=test-artifacts/test-vllm.xml;; \
	  3) echo "SKIPPED: tests/vllm (engines' life cycle, scheduler plug-in, splits, profiler, fidelity): no vLLM for CPUs, see above";; \
	  *) exit 1;; \
	esac

# The live fleet beside its own simulation, policy by policy; nothing else may run meanwhile. TWIN=all: all presets of papers.
test-twin: install-dev
	@mkdir -p test-artifacts
	$(PYTEST) tests/e2e/test_twin.py -m twin -s --junit-xml=test-artifacts/test-twin.xml

test-all: lint test test-slow test-thorough test-vllm test-twin

# Faults of the running demo while a replay is under way; as root, in namespaces of its own. Where something is missing, it is
# said what to supply. PART=2: one of the eight parts, at most twenty minutes each.
chaos: install-dev
	@mkdir -p test-artifacts
	$(BIN)/python -m tests.chaos $(PART)

# docs/production.md on bare machines in namespaces, and what happens to a fleet there. Where something is missing, it is said
# what to supply. What the machines wrote is in test-artifacts/netns.
test-netns: install-dev
	@scripts/install vllm; case $$? in 0|3) $(BIN)/python -m tests.netns;; *) exit 1;; esac

# How often a test fails: make flake TEST=tests/unit/pools/gateway N=50
flake: install-tests
	scripts/flake $(or $(N),20) $(TEST) $(QUICK)

smoke:
	scripts/smoke

# The typed client's modules that follow the REST API; a test says when they are behind.
client: install-dev
	$(BIN)/python -m scripts.client

lock: install-dev
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 requirements.in -o requirements.txt
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 requirements-dev.in -o requirements-dev.txt
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 --no-emit-package pyarrow requirements-focus.in -o requirements-focus.txt

clean:
	rm -rf .venv .venv-vllm .venv-focus build node/build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache test-artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
