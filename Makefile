# `make check` and `make quick` only look; `make format` mends. Uses .venv where there is one.
BIN := $(if $(wildcard .venv/bin/python),.venv/bin/,)

.PHONY: check quick format test paper-gpu screenshots bench audit fuzz-routes

check:
	BIN=$(BIN) tools/check.sh

# Before each commit: what costs little. A test that has become slow fails here until it is marked so.
quick: check
	$(BIN)python -m pytest -q tests/unit -m "not slow" --most-cpu-s 3 --numprocesses 2

format:
	$(BIN)ruff format .
	$(BIN)ruff check --fix .
	$(BIN)oxfmt assets/js assets/css tests/unit/javascript

test:
	./test.sh --all

# Downloads torch's CUDA build the first time, or uses the environment that PAPER_VENV names. docs/paper-gpu.md
paper-gpu:
	tools/paper_gpu.sh

# Needs pip-audit, and a network: the advisories are asked of PyPI and OSV.
audit:
	pip-audit --requirement requirements.txt --no-deps --disable-pip
	pip-audit --requirement requirements.txt --no-deps --disable-pip --vulnerability-service osv

# Needs schemathesis.
fuzz-routes:
	$(BIN)python -m tools.fuzz_routes --schemathesis schemathesis

screenshots:
	$(BIN)python -m tools.screenshots

# All of them; one: python -m benchmarks --only compare,startup
bench:
	$(BIN)python -m benchmarks
