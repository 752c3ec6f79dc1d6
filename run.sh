#!/usr/bin/env bash
# Opens the page. Installs its requirements the first time. --torch-build NAME chooses the build of torch; all
# other options are passed to app.py (see ./run.sh --help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/venv.sh
take_torch_build "$@"

# Printed first, because the check takes seconds, on a busy machine half a minute. Not printed for --help.
case " $* " in *" --help "* | *" -h "*) ;; *) echo "Checking the environment in .venv …" ;; esac
make_venv requirements.txt
exec "$PYTHON" app.py ${OPTIONS[@]+"${OPTIONS[@]}"}
