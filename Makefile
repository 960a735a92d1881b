# The README's commands. `make demo` and `make test` set up all that they need, in .venv.
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST ?= -n 2

.PHONY: demo test lint types format build clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(VENV)/bin/adaptree demo

test: $(VENV)/.developing
	$(PY) -m pytest $(PYTEST)

lint: $(VENV)/.developing
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.developing
	$(VENV)/bin/mypy

format: $(VENV)/.developing
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

build: $(VENV)/.developing
	rm -rf dist
	$(PY) -m build --outdir dist

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and pinned: alone, a later package would fetch the build with CUDA.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@
