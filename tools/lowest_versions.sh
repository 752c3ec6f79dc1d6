#!/usr/bin/env bash
# Runs some tests with the lowest version of every range of the wheel (pyproject.toml).
#   --torch       also with the lowest torch, and all strategies: gigabytes, and minutes more
#   PYTHON        interpreter of the environment that has all other packages (.venv/bin/python)
#   LOWEST_VENV   the environment; created anew (.venv-lowest)
# Other options are passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
given=${PYTHON:-}
source tools/venv.sh
PYTHON=${given:-$PYTHON}
venv=${LOWEST_VENV:-.venv-lowest}
tests=(
    tests/unit/trainers/{models,parallel,checkpoint}
    tests/unit/trainers/data/own/test_{tables,texts}.py
    tests/unit/ddp_gui/{test_operations,events/test_series}.py
    # A page starts a run of two ranks, which stops, resumes and loses a rank; psutil replaces /proc there.
    tests/integration/test_without_linux.py::test_a_run_is_started_watched_stopped_resumed_and_loses_a_rank
)
left_out=torch
if [ "${1:-}" = --torch ]; then
    shift
    left_out=
    tests+=(tests/integration/test_strategies.py)
fi

# The first version of each range must exist: `name>=1.2,<2` becomes `name==1.2`.
lowest=$("$PYTHON" - "$left_out" <<'END'
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for found in map(Requirement, project["dependencies"]):
    if found.name != sys.argv[1]:
        (version,) = (each.version for each in found.specifier if each.operator == ">=")
        print(f"{found.name}=={version}")
END
)
rm -rf "$venv"
make_overlay "$PYTHON" "$venv"
echo "Installing the lowest versions into $venv: ${lowest//$'\n'/ } …"
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-compile $lowest
"$venv/bin/python" -m pip check --disable-pip-version-check
exec "$venv/bin/python" -m pytest -m "not slow" "${tests[@]}" "$@"
