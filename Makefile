# `make check` and `make quick` change nothing; `make format` applies fixes. Uses .venv if it exists.
BIN := $(if $(wildcard .venv/bin/python),.venv/bin/,)

.PHONY: check quick format test lowest paper-gpu screenshots bench audit fuzz-routes

check:
	BIN=$(BIN) tools/check.sh

# Before each commit: the fast unit tests that the changes can affect; all of them if nothing has changed.
# A test that has become slow fails here until it is marked as slow.
quick: check
	selected=$$($(BIN)python -m tools.select_tests tests/unit) && \
	$(BIN)python -m pytest -q $$selected -m "not slow" --most-cpu-s 3 --numprocesses 2

format:
	$(BIN)ruff format .
	$(BIN)ruff check --fix .
	$(BIN)oxfmt assets/js assets/css tests/unit/javascript

test:
	./test.sh --all

# The lowest versions of the wheel's ranges, torch included, which is gigabytes; CI runs it without --torch.
lowest:
	tools/lowest_versions.sh --torch

# Downloads torch's CUDA build the first time, or uses the environment PAPER_VENV. See docs/paper-gpu.md.
paper-gpu:
	tools/paper_gpu.sh

# Needs pip-audit and network access: advisories come from PyPI and OSV.
audit:
	pip-audit --requirement requirements.txt --no-deps --disable-pip
	pip-audit --requirement requirements.txt --no-deps --disable-pip --vulnerability-service osv

# Needs schemathesis.
fuzz-routes:
	$(BIN)python -m tools.fuzz_routes --schemathesis schemathesis

screenshots:
	$(BIN)python -m tools.screenshots

# All benchmarks. To run some: python -m benchmarks --only compare,startup
bench:
	$(BIN)python -m benchmarks
