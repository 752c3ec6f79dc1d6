# `make check` only looks; `make format` mends. Uses .venv where there is one.
BIN := $(if $(wildcard .venv/bin/python),.venv/bin/,)

.PHONY: check format test screenshots bench audit fuzz-routes

check:
	BIN=$(BIN) tools/check.sh

format:
	$(BIN)ruff format .
	$(BIN)ruff check --fix .

test:
	./test.sh

# Needs pip-audit, and a network: the advisories are asked of PyPI and OSV.
audit:
	pip-audit --requirement requirements.txt --no-deps --disable-pip
	pip-audit --requirement requirements.txt --no-deps --disable-pip --vulnerability-service osv

# Needs schemathesis.
fuzz-routes:
	$(BIN)python -m tools.fuzz_routes --schemathesis schemathesis

screenshots:
	$(BIN)python -m tools.screenshots

bench:
	$(BIN)python -m benchmarks.compare --rivals-python .venv-bench/bin/python
	$(BIN)python -m benchmarks.startup
	$(BIN)python -m benchmarks.step_cost
	$(BIN)python -m benchmarks.event_rate
	$(BIN)python -m benchmarks.growth
	$(BIN)python -m benchmarks.watch
	$(BIN)python -m benchmarks.watch --config '{"dataset": "austen", "model": "gpt"}'
	$(BIN)python -m benchmarks.kill_each
	$(BIN)python -m benchmarks.exits
	$(BIN)python -m benchmarks.catalogue
	$(BIN)python -m benchmarks.strategies
	$(BIN)python -m benchmarks.dashboard pixel
	$(BIN)python -m benchmarks.dashboard opening
	$(BIN)python -m benchmarks.dashboard viewers
	$(BIN)python -m benchmarks.dashboard idle
	$(BIN)python -m benchmarks.dashboard tabs
	$(BIN)python -m benchmarks.dashboard first-page
	$(BIN)python -m benchmarks.memory
	$(BIN)python -m benchmarks.many_runs
	$(BIN)python -m benchmarks.classroom
