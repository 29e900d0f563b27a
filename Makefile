# Every command first sets up what it needs; that is quick when nothing changed.
#
#   PYTHON=python3.12 make setup   chooses the interpreter (>= 3.11) of the virtual environment
#   make demo ARGS="..."           hands arguments on

export PYTHON ?= python3
# The tests start hundreds of Python processes: none shall compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# What builds the wheel is pinned, like all else.
BUILD := $(BIN)/uv build --quiet --out-dir dist --python $(BIN)/python --build-constraint requirements-build.lock --require-hashes
COMPILE := $(BIN)/uv pip compile --universal --generate-hashes --python-version 3.11 --quiet --custom-compile-command "make lock"
# Three on two cores, since tests of streams wait a third of their time. A process that crashes is not replaced: the run
# has failed.
DIVIDED := -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test clusters soak kill coverage mutations lint format bench compiled figures screenshots docs lock dist matrix

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: ## make .venv from the lock files, and find or install Java
	@scripts/setup.sh

demo: setup ## a year of real flights through every package; ARGS="--events 50000" for less, ARGS=--help for more
	$(BIN)/millpond demo $(ARGS)

test: setup ## run the tests in three processes; ARGS="tests/cache -x" for some, ARGS="-n0" for one process
	@scripts/test_servers.sh
	@$(BIN)/python -m tests.jvms
	$(BIN)/python -m pytest $(DIVIDED) $(ARGS)

clusters: setup ## run the tests that start a Spark of their own: bare sessions, clusters that are killed, the demo
	@$(BIN)/python -m tests.jvms
	$(BIN)/python -m pytest -m "clusters and not soak" $(ARGS)

soak: setup ## run the whole products of tests, random tests a hundred times as long, and kill clusters at random: over an hour
	@scripts/test_servers.sh
	$(BIN)/python -m tests.soak $(ARGS)

kill: setup ## kill what belongs to a stream at random, and judge what comes out; ROUNDS=3 for more
	$(BIN)/python -m tests.faults.killer --rounds $(or $(ROUNDS),1) $(ARGS)

coverage: setup ## run all tests and say which lines none of them reached
	@scripts/test_servers.sh
	@$(BIN)/python -m tests.jvms
	$(BIN)/python -m pytest $(DIVIDED) --cov --cov-report=term-missing:skip-covered $(ARGS)

mutations: setup ## break one guard after another, and see that the tests notice; ARGS="'the lease of a shard'" for some, by name
	$(BIN)/python scripts/mutations.py $(ARGS)

lint: setup ## formatting, lint, types and the directions of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: compiled ## run all benchmarks on the compiled package; one: .venv/bin/python -m benchmarks.NAME
	PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python -m benchmarks

compiled: setup ## make build/compiled, which is what the wheel of this platform installs: PYTHONPATH=build/compiled uses it
	rm -rf build/compiled build/wheel
	scripts/compiled_wheel.sh build/wheel
	$(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python --target build/compiled build/wheel/*.whl

figures: setup ## copy the measured tables into the README and the docs
	$(BIN)/python -m benchmarks.figures

screenshots: setup ## make the pictures of the web page that the docs show, with a real browser
	MILLPOND_SCREENSHOTS=docs/images/ui $(BIN)/python -m pytest -q tests/ui -k "pictures or slow or searched"

docs: export NO_MKDOCS_2_WARNING := 1
docs: setup ## build the documentation site into site/; read it with: .venv/bin/mkdocs serve
	$(BIN)/mkdocs build --strict $(ARGS)

dist: setup ## build wheels, source distribution and bill of materials, and try them in a blank environment for every extra; ARGS="-k redis" for some, MILLPOND_ADVISORIES=1 to ask PyPI for advisories
	rm -rf dist
	$(BUILD)
	scripts/compiled_wheel.sh dist
	$(BIN)/python -m pytest tests/dist -m dist $(ARGS)

matrix: setup ## test on every supported PySpark, on every Python that is there, and with the lowest versions of dependencies; ARGS=smoke for a few tests on each
	@$(BIN)/python scripts/matrix.py $(ARGS)

lock: setup ## resolve the dependencies of pyproject.toml anew
	$(COMPILE) --group build -o requirements-build.lock
	$(COMPILE) pyproject.toml --all-extras --group dev -o requirements.lock
