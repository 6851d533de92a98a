# The two commands of a fresh machine: `make run` and `make test`. Everything they need, they install.
PYTHON ?= python3
BIN := .venv/bin
STATE ?= examples/cluster

.PHONY: install run test check lint demo bench clean

install: .venv/installed

.venv/installed: requirements/dev.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

run: install
	$(BIN)/hami-quota certs --dir .state/certs --loopback
	$(BIN)/hami-quota serve --state $(STATE) --device-config examples/device-config.yaml --certs .state/certs --hints

test: install
	scripts/check

check: test

lint: install
	scripts/lint

demo: install
	scripts/demo

bench: install
	$(BIN)/python scripts/bench.py
	$(BIN)/python scripts/bench_ledger.py

clean:
	rm -rf .venv .cache .state build dist
