PY := .venv/bin/python

.PHONY: setup demo test lint lock bench
setup: .venv/.installed
.venv/.installed: requirements.lock pyproject.toml scripts/setup.sh
	scripts/setup.sh
demo: setup
	.venv/bin/millpond demo
test: setup
	$(PY) -m pytest
lint: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
lock: setup
	.venv/bin/python -m pip install -q uv
	.venv/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes --python-version 3.11 --quiet -o requirements.lock --custom-compile-command "make lock"
bench: setup
	$(PY) -m benchmarks
