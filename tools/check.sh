#!/usr/bin/env bash
# Checks format, lint, strict types and architecture; changes nothing. BIN is the folder of the tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=${BIN-$([ -x .venv/bin/ruff ] && echo .venv/bin/)}

# Modules whose parameters are all typed; to be extended.
TYPED_MODULES=(
    assets/js/charts/{axes,plot,traces}.js
    assets/js/runs/filter.js
    assets/js/shared/{browser,format,net}.js
)

"${BIN}ruff" format --check .
"${BIN}ruff" check .
"${BIN}oxfmt" --check assets/js assets/css tests/unit/javascript
"${BIN}oxlint" --deny-warnings assets/js tests/unit/javascript
# Deno includes TypeScript and checks the JSDoc types. It does not access the network.
export DENO_NO_UPDATE_CHECK=1
"${BIN}deno" check --quiet --config tools/javascript/deno.json assets/js
"${BIN}deno" check --quiet --config tools/javascript/typed.json "${TYPED_MODULES[@]}"
"${BIN}bandit" --quiet --configfile pyproject.toml --recursive app.py ddp_gui rankscope trainers tools
"${BIN}mypy"
"${BIN}lint-imports"
