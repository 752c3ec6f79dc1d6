#!/usr/bin/env bash
# Format, lint, strict types, architecture: looks and never mends. BIN is where the tools are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=${BIN-$([ -x .venv/bin/ruff ] && echo .venv/bin/)}

# Every parameter of these has a type; the list grows.
TYPED_MODULES=(
    assets/js/charts/{growing_axis,room,traces}.js
    assets/js/runs/filter.js
    assets/js/shared/{format,polling,prefs,throttle,visible}.js
)

"${BIN}ruff" format --check .
"${BIN}ruff" check .
"${BIN}oxfmt" --check assets/js assets/css tests/unit/javascript
"${BIN}oxlint" --deny-warnings assets/js tests/unit/javascript
# Deno holds TypeScript: types as JSDoc states them. It asks no network.
export DENO_NO_UPDATE_CHECK=1
"${BIN}deno" check --quiet --config tools/javascript/deno.json assets/js
"${BIN}deno" check --quiet --config tools/javascript/typed.json "${TYPED_MODULES[@]}"
"${BIN}bandit" --quiet --configfile pyproject.toml --recursive app.py ddp_gui trainers tools
"${BIN}mypy"
"${BIN}lint-imports"
