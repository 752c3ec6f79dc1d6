#!/usr/bin/env bash
# Opens the page. Installs what it needs the first time. --torch-build NAME chooses the build of torch; all other
# options go to app.py (see ./run.sh --help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/venv.sh
take_torch_build "$@"

# At once: what follows takes seconds, on a busy machine half a minute. Not before the text of --help.
case " $* " in *" --help "* | *" -h "*) ;; *) echo "Checking the environment in .venv …" ;; esac
make_venv requirements.txt
exec "$PYTHON" app.py ${OPTIONS[@]+"${OPTIONS[@]}"}
