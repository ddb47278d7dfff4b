# Needs Python 3.11 or newer with pip and venv, and nothing else. PYTHON=python3.12 picks another interpreter.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed
TRITON := .venv/.triton
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

# what is installed goes into .venv and what runs comes from there, whatever the caller's shell is set to
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX
export PIP_USER = no

.PHONY: help gate test lint types lock clean
.DELETE_ON_ERROR:

help:
	@echo "make gate    bring up the embedded deployment, load it, judge it, report (ARGS=\"--fault NAME\" passes options)"
	@echo "make test    ruff, mypy and pytest: what CI runs"
	@echo "make lint    ruff and mypy only"
	@echo "make lock    resolve requirements/*.in into requirements/lock.txt"
	@echo "make clean   remove .venv and caches"

gate: $(STAMP)
	$(BIN)/pdwatch gate $(ARGS)

test: lint $(TRITON)
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.PHONY: .venv
.venv: $(STAMP)

# made anew, not added to, when a pin changes: what is no longer in the lock must not stay importable
$(STAMP): requirements/lock.txt requirements/torch.txt requirements/install-torch pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11: name a newer one, e.g. make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(PIP_INSTALL) --require-hashes --requirement requirements/lock.txt
	sh requirements/install-torch $(BIN)/python
	$(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

# a CUDA build of PyTorch brings its own
$(TRITON): $(STAMP) requirements/triton.txt
	$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP_INSTALL) --require-hashes --requirement requirements/triton.txt
	@touch $@

lock: $(STAMP)
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe \
		--strip-extras --no-emit-index-url --no-emit-find-links --output-file requirements/lock.txt requirements/dev.in

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
