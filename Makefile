# make run [ARGS="strategy=ddp train.steps=5"]   train GPT-2 under FSDP (installs into .venv first)
# make test                                     install what the tests need and run them
# make test-all                                 the same and every fault run (some 10 minutes more)
# make check                                    lint, types, import direction
# make docs                                     the documentation as a site in build/site
# make bench                                    the figures of docs/benchmarks.md (needs a quiet machine)
# make help                                     this text
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run $(VENV)/.compiled test test-all check docs bench clean

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dtk needs Python 3.11 or newer; name one: make run PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing dtk and torch into $(VENV) (once; a few minutes)"
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	@echo "installing what the tests need into $(VENV) (once)"
	$(PIP) -e '.[train,deepspeed,wandb,wandb-reports,tensorboard,hf,attach,docs,dev]' scipy scikit-learn jsonref
	$(PIP) --no-deps sweeps  # It asks for numpy < 2, and works with 2.
	@touch $@

$(VENV)/.compiled: $(VENV)/.dev
	@# Hundreds of processes would compile modules and tables again where writing bytecode is off.
	@$(BIN)/python -m compileall -q dtk diagnostics
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import pathlib, diagnostics.contract.files as files; \
	  [files.read_table(path) for path in pathlib.Path().glob("d*/**/*.yaml") if "templates" not in path.parts]'

run: $(VENV)/.train
	$(BIN)/python -m dtk.run strategy=fsdp model=gpt2 $(ARGS)

test: $(VENV)/.compiled
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: $(VENV)/.compiled
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "" $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[train,bench]'
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run_all.py $(ARGS)

clean:
	rm -rf $(VENV) build dist
