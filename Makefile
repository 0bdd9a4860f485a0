# What a person and CI do here. Needed beforehand: python3 >= 3.11, make and a package index. `uv` is used when present.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/made
WANTED := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt lint types prove wheel clean

help: ## list everything
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s  %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## see a queue drain: no key, no network, under 20 s
	$(BIN)/millpond demo

test: $(STAMP) ## run the tests
	$(BIN)/pytest -n auto --dist worksteal

check: $(STAMP) lint types ## what CI runs: format, lint, types, layers, tests
	$(BIN)/pytest -n auto --dist worksteal

lint: $(STAMP) ## formatting, lint rules and the layers of the house
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports

types: $(STAMP) ## strict types
	$(BIN)/basedpyright

fmt: $(STAMP) ## format, and mend what can be mended
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

prove: $(STAMP) ## the long proofs, minutes rather than seconds
	$(BIN)/pytest -n auto --dist worksteal -m prove

wheel: $(STAMP) ## build the wheel and run its demo in an empty environment
	rm -rf build/wheel
	@if command -v uv >/dev/null 2>&1; then uv build -q --wheel --out-dir build/wheel; \
	else $(BIN)/python -m pip wheel -q --no-deps --wheel-dir build/wheel .; fi
	$(BIN)/python -m venv build/wheel/empty
	build/wheel/empty/bin/python -m pip install -q build/wheel/*.whl
	cd build/wheel && empty/bin/millpond demo

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment with the package (editable), all its extras and the test tools; made anew when pyproject.toml changes.
# pip older than 25.1 does not know dependency groups, so the environment's own pip is brought up first.
$(STAMP): pyproject.toml
	@python=; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$candidate -c '$(WANTED)' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: no Python >= 3.11 found (tried python3, python3.14 to python3.11); install one, or say make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	rm -rf $(VENV); \
	if command -v uv >/dev/null 2>&1; then \
	  echo "making $(VENV) with $$python and uv" && \
	  uv venv -q --no-project --python "$$(command -v $$python)" $(VENV) && \
	  uv pip install -q --python $(BIN)/python -e '.[all]' --group dev; \
	else \
	  echo "making $(VENV) with $$python and pip" && \
	  if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "make: $$python has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; \
	  fi && \
	  $$python -m venv $(VENV) && \
	  $(BIN)/python -m pip install -q --upgrade 'pip>=25.1' && \
	  $(BIN)/python -m pip install -q -e '.[all]' --group dev; \
	fi
	@touch $@
