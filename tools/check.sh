#!/usr/bin/env bash
# Format, lint, strict types, architecture: looks and never mends. BIN is where the tools are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=${BIN-$([ -x .venv/bin/ruff ] && echo .venv/bin/)}

"${BIN}ruff" format --check .
"${BIN}ruff" check .
"${BIN}mypy"
"${BIN}lint-imports"
