#!/usr/bin/env bash
# Format, lint, strict types, architecture: looks and never mends. BIN is where the tools are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=${BIN-$([ -x .venv/bin/ruff ] && echo .venv/bin/)}

"${BIN}ruff" format --check .
"${BIN}ruff" check .
"${BIN}oxfmt" --check assets/js assets/css
"${BIN}oxlint" --deny-warnings assets/js
"${BIN}bandit" --quiet --configfile pyproject.toml --recursive app.py ddp_gui trainers tools
"${BIN}mypy"
"${BIN}lint-imports"
