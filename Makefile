# `make up` runs the product, `make test` its tests; each installs what it needs first.
.DEFAULT_GOAL := help
.PHONY: help install install-dev up down lint check test test-slow test-vllm lock clean
BIN := .venv/bin
PYTEST := $(BIN)/pytest -q
QUICK := -m "not slow and not gpu and not vllm"
# Missing migrations are found without a database; that its history was not looked at is no news.
NO_DATABASE := $(BIN)/python -W ignore::RuntimeWarning:django.core.management.commands.makemigrations

help:
	@echo "make up         install what is missing and run GreenServe (Ctrl-C stops it)"
	@echo "make down       stop a GreenServe that runs in the background or another terminal"
	@echo "make test       all tests but the slow ones (needs no running services)"
	@echo "make test-slow  the slow tests: the whole product, processes killed in turn"
	@echo "make test-vllm  tests with a real vLLM on CPUs, in an environment of its own (2.5 GB)"
	@echo "make lint       format, lint, types, import rule, Django checks, migrations"
	@echo "make check      make lint, then the unit tests"
	@echo "make install    only install; make lock  renew the locks; make clean  remove what make made, but no data"

install:
	@scripts/install run

install-dev:
	@scripts/install dev

up: install
	@$(BIN)/greenserve up

down: install
	@$(BIN)/greenserve down

lint: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --no-error-summary .
	$(BIN)/lint-imports
	$(BIN)/python manage.py check --fail-level WARNING
	$(NO_DATABASE) manage.py makemigrations --check --dry-run

check: lint
	$(PYTEST) tests/unit $(QUICK)

test: install-dev
	@scripts/browser
	@mkdir -p test-artifacts
	$(PYTEST) -n 4 --dist loadfile $(QUICK) --junit-xml=test-artifacts/test.xml

# pytest ends with 5 where there is no slow test to run.
test-slow: install-dev
	@scripts/browser
	@mkdir -p test-artifacts
	$(PYTEST) -m "slow and not gpu and not vllm" --junit-xml=test-artifacts/test-slow.xml || [ $$? -eq 5 ]
	$(PYTEST) tests/unit/simulator/test_modes.py --hypothesis-profile=thorough
	$(PYTEST) tests/unit/gateway/test_fuzz.py --hypothesis-profile=fuzz

# Where a vLLM for CPUs is not to be had (3), it is said what to supply, and what is skipped for that reason.
test-vllm: install-dev
	@mkdir -p test-artifacts
	@scripts/install vllm; case $$? in \
	  0) nice -n 5 $(PYTEST) tests/vllm -m vllm --durations=20 --junit-xml=test-artifacts/test-vllm.xml;; \
	  3) echo "SKIPPED: tests/vllm (engines' life cycle, scheduler plug-in, splits, profiler, fidelity): no vLLM for CPUs, see above";; \
	  *) exit 1;; \
	esac

lock: install-dev
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 requirements.in -o requirements.txt
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 requirements-dev.in -o requirements-dev.txt

clean:
	rm -rf .venv .venv-vllm build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache test-artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
