#!/usr/bin/env bash
# Opens the page. Installs what it needs the first time; options go to app.py (see ./run.sh --help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/venv.sh

make_venv requirements.txt
exec "$PYTHON" app.py "$@"
