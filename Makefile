# Every target sets up what it needs in .venv. .ci/run and .github/workflows/ci.yml call these same targets.
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST ?= -n 2 --dist worksteal
PEERS  := $(VENV)/peers

.PHONY: demo smollm test test-slow test-all coverage coverage-total peers lint types format docs build wheel audit clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(VENV)/bin/adaptree demo

# The language model that some tests use; without it they are skipped.
smollm: $(VENV)/.installed
	$(VENV)/bin/adaptree bases get smollm

test: $(VENV)/.developing
	$(PY) -m pytest $(PYTEST) $(COVERAGE) -m "not slow and not campaign"

# What `make test` leaves out but for the campaigns: every method on every architecture, and other tests that take long.
test-slow: $(VENV)/.developing
	$(PY) -m pytest $(PYTEST) $(COVERAGE) -m "slow and not campaign"

# All tests, the long campaigns too.
test-all: $(VENV)/.developing
	$(PY) -m pytest $(PYTEST) $(COVERAGE)

# All tests, a little slower; the last line says how many lines of the package they ran.
coverage: COVERAGE = --cov --cov-report=xml
coverage: test-all coverage-total

coverage-total:
	@$(PY) -m coverage report --format=total | sed 's/.*/coverage: & %/'

# What adapters and peft compute, in an environment of their own, for the tests that compare us with them.
peers: $(PEERS)/numbers/.made
	@echo 'ADAPTREE_PEERS=$(PEERS)/numbers make test'

lint: $(VENV)/.developing
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.developing
	$(VENV)/bin/mypy

format: $(VENV)/.developing
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The documentation, into site/: open site/index.html. A warning is an error.
docs: $(VENV)/.documenting
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

build: $(VENV)/.developing
	rm -rf dist
	$(PY) -m build --outdir dist

# What is in the wheel, and whether it works in an environment of its own.
wheel: build
	.ci/wheel

# Known vulnerabilities in what is installed: reported, and no failure where the network forbids asking.
audit: $(VENV)/.developing
	-$(VENV)/bin/$(PIP) pip-audit && $(VENV)/bin/pip-audit --skip-editable --progress-spinner off

clean:
	rm -rf $(VENV) dist build site .coverage coverage.xml .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and pinned: alone, a later package would fetch the build with CUDA.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(VENV)/bin/$(PIP) torch
	$(VENV)/bin/$(PIP) --editable .
	touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(VENV)/bin/$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.documenting: $(VENV)/.installed
	$(VENV)/bin/$(PIP) --editable '.[docs]'
	touch $@

$(PEERS)/.installed: tests/peers/requirements.txt constraints.txt
	python3 -m venv $(PEERS)
	$(PEERS)/bin/$(PIP) torch
	$(PEERS)/bin/$(PIP) --requirement tests/peers/requirements.txt
	touch $@

MAKERS := $(sort $(wildcard tests/peers/make_*.py))
$(PEERS)/numbers/.made: $(PEERS)/.installed tests/peers/models.py $(MAKERS)
	for maker in $(MAKERS); do $(PEERS)/bin/python $$maker $(PEERS)/numbers || exit 1; done
	touch $@

# What adaptree costs beside its peers. The data's folder is ADAPTREE_DATA; more options: make bench BENCH='--rows epoch'.
.PHONY: bench bench-quick
bench: $(VENV)/.developing $(PEERS)/.benching
	$(PY) -m benchmarks.run --peers $(PEERS)/bin/python $(BENCH)

bench-quick: $(VENV)/.developing $(PEERS)/.benching
	$(PY) -m benchmarks.run --peers $(PEERS)/bin/python --quick $(BENCH)

$(PEERS)/.benching: $(PEERS)/.installed benchmarks/requirements.txt
	$(PEERS)/bin/$(PIP) --requirement benchmarks/requirements.txt
	touch $@
