#!/usr/bin/env bash
# Runs the fast unit tests, all strategies and runs of a page with another version of Python.
#   PYTHON         the interpreter, such as python3.14
#   VERSION_VENV   its environment, made the first time (.venv-python3.14): 5 GB with torch's CUDA build
# Options are passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VERSION_VENV:-.venv-python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}

# The stamp is written last, so an interrupted installation is continued.
if ! cat requirements.txt requirements-dev.txt | cmp -s - "$venv/requirements.installed"; then
    [ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
    wheel=$("$PYTHON" -m tools.torch_build fetch "$venv" "${DDP_TORCH_BUILD:-auto}" requirements.txt requirements-dev.txt)
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet \
        $wheel -r requirements.txt -r requirements-dev.txt
    rm -f "$wheel"
    cat requirements.txt requirements-dev.txt >"$venv/requirements.installed"
fi
exec "$venv/bin/python" -m pytest -m "not slow" tests/unit tests/integration/test_{strategies,without_linux}.py "$@"
