# make demo    a whole training run, and the proof that it has the promised bits
# make test    the default tests       make test-long   the rest
# make check   style, types, imports   make wheel-test  the built package in empty environments

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check docs wheel-test compiled clean

help:
	@sed -n 's/^# //p' Makefile

# The only rule that installs anything. The environment is made anew when what it holds changes.
$(READY): pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# Recording is cheaper with it, and whole without it: where there is no compiler that is said.
compiled: $(READY)
	-$(BIN)/bitstep compile

demo: $(READY)
	rm -rf demo
	$(BIN)/bitstep pretrain nano -o demo/run
	$(BIN)/bitstep log demo/run | head -n 12
	$(BIN)/bitstep prove nano --steps 12 --processes 1,2,4 -o demo/proof

# A file at a time on each core: files share what is dear to set up, such as a launch.
test: compiled
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadfile

test-long: compiled
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m long

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	$(BIN)/python -m bitstep.cli.reference > docs/cli.md

wheel-test: $(READY)
	.ci/wheel-test $(BIN)/python $(PYTHON)

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache *.egg-info bitstep/observe/native/built
