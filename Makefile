# Two commands: `make demo` shows what the project does on a real KV cache, `make test` runs its tests.
# Each makes a virtual environment of its own in .venv and installs all it needs there.

PYTHON ?= python3
EXTRAS ?= dev
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint fixtures bench clean

demo: $(STAMP)
	@$(BIN)/python tools/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fixtures: $(STAMP)
	$(BIN)/python tools/make_fixtures.py

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS),bench]'
	$(BIN)/python tools/bench.py $(ARGS)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
