#!/usr/bin/env bash
# Runs the tests that need optional packages: fine-tuning, trackers, notebooks, notifications, other trainers.
#   PYTHON        interpreter of the environment that has all other packages (.venv/bin/python)
#   EXTRAS_VENV   the environment, made the first time (.venv-extras): 0.9 GB
# Options are passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
given=${PYTHON:-}
source tools/venv.sh
PYTHON=${given:-$PYTHON}
venv=$(realpath -m "${EXTRAS_VENV:-.venv-extras}")
requirements=(requirements-{bench,finetune,notebook,notify,tensorboard,trackio,wandb}.txt)
export PATH=$venv/node_modules/.bin:$PATH
status=0

# Failed tests are run once more, as in test.sh.
run_tests() {
    local result=0
    "$venv/bin/python" -m pytest --cache-clear "$@" || result=$?
    if [ "$result" = 1 ]; then
        result=0
        "$venv/bin/python" -m pytest --last-failed "$@" || result=$?
    fi
    [ "$result" = 0 ] || status=$result
}

install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-compile "$@"
}

# The stamp is written last, so an interrupted installation is repeated.
if ! cat "${requirements[@]}" | cmp -s - "$venv/requirements.installed"; then
    echo "Installing optional packages into $venv …"
    rm -rf "$venv"
    make_overlay "$PYTHON" "$venv"
    # First without torchvision: PyPI's goes with the CUDA build of torch, and scripts cannot import it with another one.
    install $(grep -hv -e '^#' -e torchvision -e timm "${requirements[@]}") mlflow==3.17.2
    # The proxy of JupyterHub.
    ! command -v npm >/dev/null || npm install --silent --no-fund --no-audit --prefix "$venv" configurable-http-proxy@5.3.0
    run_tests tests/integration/test_scripts.py -k "hf_trainer or with_accelerate or with_lightning" "$@"
    install -r requirements-finetune.txt
    cat "${requirements[@]}" >"$venv/requirements.installed"
fi
run_tests tests/integration/test_{finetune,notify,real_trackers}.py tests/ui/notebook \
    tests/unit/ddp_gui/runs/test_exports.py "$@"
exit "$status"
