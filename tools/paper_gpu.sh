#!/usr/bin/env bash
# Runs tests/paper_gpu, and tests/gpu on 1, 2 and 8 paper GPUs (docs/paper-gpu.md): torch's CUDA build without a GPU.
#   PAPER_VENV   the environment; created if it is missing (.venv-paper: several GB)
#   PAPER_NUMS   numbers of GPUs: "1 2 8"
#   PAPER_MODEL  profile of the GPUs: T4, RTX3060, A100 or H100
# Options are passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${PAPER_VENV:-.venv-paper}
python=$venv/bin/python

if ! command -v g++ >/dev/null; then
    echo "g++ is needed to build the paper GPU. On Debian or Ubuntu: sudo apt install g++" >&2
    exit 1
fi
# The stamp is written last, so an interrupted installation is continued.
if [ ! -e "$venv/paper_gpu.installed" ] && ! "$python" -c 'import torch, hypothesis, gradio' 2>/dev/null; then
    echo "Installing torch's CUDA build and the requirements into $venv: several GB, once …"
    [ -x "$python" ] || python3 -m venv "$venv"
    "$python" -m pip install --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
    touch "$venv/paper_gpu.installed"
fi
if ! "$python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; then
    echo "The torch in $venv is built without CUDA: remove $venv, and let pip find the CUDA build." >&2
    exit 1
fi

status=0
summary=""
# run GPUS FOLDER OPTION…
run() {
    local gpus=$1 report
    shift
    echo "== $gpus: $1"
    report=$(mktemp)
    "$python" -m tests.paper_gpu "$gpus" OMP_NUM_THREADS=1 -- \
        "$python" -m pytest -m "gpu or paper_gpu" "$@" | tee "$report" || [ $? = 5 ] || status=1  # 5: no test
    summary+="$gpus, $1: $(tail -n 1 "$report")"$'\n'
    rm -f "$report"
}
# tests/paper_gpu configures its GPUs itself, so it runs once.
run "${PAPER_MODEL:-H100}x1" tests/paper_gpu "$@"
for num in ${PAPER_NUMS:-1 2 8}; do
    run "${PAPER_MODEL:-H100}x$num" tests/gpu "$@"
done
printf '%s' "$summary"
exit "$status"
