# Bare `make` lists the targets. Everything is installed into .venv from the hash-pinned lock; python3 and git are enough.

PYTHON ?= python3
VENV := .venv
# Tests wait for other processes most of the time: three at once take half of the time of one on two cores.
JOBS ?= 3
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo dev test test-contract check bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/ready ## send a flash sale to 100,000 lifelike people through Dagster and a local SES stand-in
	$(BIN)/python -m mailpipe demo $(ARGS)

dev: $(VENV)/ready ## open the same data in the Dagster UI (stop with Ctrl-C)
	$(BIN)/python -m mailpipe dev $(ARGS)

test: $(VENV)/ready-dev ## run the tests: unit, db, web, faces, crash (JOBS processes, 3 if nothing is said; 0: in this one)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-contract: $(VENV)/ready-dev .venv-contract/ready tests/contract/node_modules/.package-lock.json ## run our client against SES stand-ins that were written by others
	$(BIN)/python -m pytest tests/contract $(ARGS)

check: $(VENV)/ready-dev ## formatter, linter, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/ready-dev ## measure the claims of docs/benchmarks.md, quickly
	$(BIN)/python -m benchmarks.ledger --quick
	$(BIN)/python -m benchmarks.pipeline --quick
	$(BIN)/python -m benchmarks.pace --quick
	$(BIN)/python -m benchmarks.lanes --quick
	$(BIN)/python -m benchmarks.events --quick
	$(BIN)/python -m benchmarks.engagement --quick
	$(BIN)/python -m benchmarks.schedule --quick
	$(BIN)/python -m benchmarks.sendtime --quick
	$(BIN)/python -m benchmarks.ab --quick

lock: $(VENV)/ready-dev ## compile the hash-pinned requirements anew
	$(BIN)/uv pip compile pyproject.toml $(COMPILE) --extra dagster --group build -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml $(COMPILE) --extra dagster --group build --group dev -c requirements.lock -o requirements-dev.lock
	$(BIN)/uv pip compile $(COMPILE) --group contract -o requirements-contract.lock

clean: ## remove the environment and all local data (the embedded database too)
	-$(BIN)/python -m mailpipe db stop
	rm -rf $(VENV) .venv-contract tests/contract/node_modules var

# One lock for all platforms and Python 3.11 to 3.13; no address of a registry in it.
COMPILE := --universal --python-version 3.11 --generate-hashes --no-strip-extras \
	--no-emit-index-url --no-annotate --no-header -q

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("mailpipe needs Python 3.11 to 3.13, this is " + sys.version.split()[0]) if not (3, 11) <= sys.version_info[:2] < (3, 14) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: requirements.lock | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index -e .
	@touch $@

$(VENV)/ready-dev: requirements-dev.lock | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index -e .
	@touch $(VENV)/ready $@

# In an environment of its own: it pins another botocore than ours.
.venv-contract/ready: requirements-contract.lock
	$(PYTHON) -m venv .venv-contract
	.venv-contract/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-contract.lock
	@touch $@

tests/contract/node_modules/.package-lock.json: tests/contract/package-lock.json
	@if command -v npm >/dev/null; then cd tests/contract && npm ci --quiet --no-progress && touch node_modules/.package-lock.json; \
	else echo "npm is not installed: the tests against aws-ses-v2-local will skip"; fi
