#!/usr/bin/env bash
# Checks the project, then runs the tests that changes of the working tree can affect and a smoke test of each
# other area; all tests if nothing has changed. --all: all tests. Other options are passed to pytest.
# Installs its requirements the first time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/venv.sh

has_browser() {
    [ -n "${CHROMIUM:-}" ] || command -v chromium || command -v chromium-browser || command -v google-chrome
} >/dev/null 2>&1

has_slurm() {
    command -v slurmctld && command -v slurmd && command -v munged && command -v ip
} >/dev/null 2>&1

has_accounting() {
    PATH="$PATH:/usr/sbin:/sbin" command -v slurmdbd && PATH="$PATH:/usr/sbin:/sbin" command -v mariadbd
} >/dev/null 2>&1

has_sshd() {
    PATH="$PATH:/usr/sbin:/sbin" command -v sshd && command -v ssh && command -v rsync && command -v flock && command -v ip
} >/dev/null 2>&1

has_ruby() {
    command -v ruby
} >/dev/null 2>&1

has_bwrap() {
    command -v bwrap
} >/dev/null 2>&1

# Some containers do not allow sandboxes.
can_confine() {
    has_bwrap && bwrap --unshare-net --ro-bind / / true
} >/dev/null 2>&1

# install_packages PURPOSE PACKAGE…
install_packages() {
    local what_for="$1" as_root=()
    shift
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "Installing $* for $what_for (apt) …"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}

# Without cached bytecode each of the many processes would compile the project.
unset PYTHONDONTWRITEBYTECODE

make_venv requirements.txt requirements-dev.txt
has_browser || install_packages "the tests of the page" chromium || true
has_slurm || install_packages "the tests on a cluster" slurm-wlm munge iproute2 || true

# Only in CI: on a user's machine the installed database and sshd would be started, and sshd accepts connections from
# the network.
[ -z "${CI:-}" ] || has_accounting || install_packages "the tests of Slurm's accounting" slurmdbd mariadb-server || true
[ -z "${CI:-}" ] || has_sshd || install_packages "the tests by SSH" openssh-server openssh-client rsync iproute2 || true
has_ruby || install_packages "the test of the app for Open OnDemand" ruby || true
has_bwrap || install_packages "the tests of the sandbox for scripts" bubblewrap || true

# Print the selected arguments for pytest with this prefix, one per line.
selected_in() {
    grep "^$1" <<<"$selected" || true
}

# Run tests; then those that failed once more, one at a time. Beside other tests a real time limit can be missed on a
# busy machine: such a test is named, and only fails if it fails alone too. More than 5 failures have another cause.
run_tests() {
    local status=0 failed
    "$PYTHON" -m pytest --cache-clear "$@" || status=$?
    [ "$status" = 1 ] || return "$status"
    failed=$("$PYTHON" -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")')
    [ "$(wc -l <<<"$failed")" -le 5 ] || return "$status"
    mapfile -t failed <<<"$failed"
    printf 'FAILED BESIDE OTHER TESTS, run again: %s\n' "${failed[@]}"
    "$PYTHON" -m pytest "${failed[@]}"
}

# tests/faults runs separately with two workers, because runs that train at full speed would disturb it.
run_selected() {
    local status=0 selected="$1" faults gpu others
    [ "$selected" != tests ] || selected=$(find tests -mindepth 1 -maxdepth 1 -type d)
    mapfile -t faults < <(selected_in tests/faults)
    mapfile -t gpu < <(selected_in tests/gpu)
    mapfile -t others < <(selected_in tests/ | grep -v -e ^tests/faults -e ^tests/gpu -e ^tests/paper_gpu)
    # Keeps the sorted order, in which long tests come first. One worker for each core: a worker keeps a core busy for 0.93
    # of the time in tests of the page, 0.97 with runs, 0.6 with clusters, so that a third would gain little on two cores.
    [ ${#others[@]} = 0 ] || run_tests "${others[@]}" --numprocesses auto --maxprocesses 4 --dist loadfile \
        --no-loadscope-reorder --durations=60 --durations-min=3 || status=$?
    [ ${#faults[@]} = 0 ] || run_tests "${faults[@]}" --numprocesses 2 || status=$?
    # Separately and one at a time: these tests check which processes are on the GPUs, and measure speed.
    [ ${#gpu[@]} = 0 ] || "$PYTHON" -m pytest "${gpu[@]}" || status=$?
    # Only if `make paper-gpu` has created its environment, which takes several GB.
    [ -z "$(selected_in tests/paper_gpu)" ] || [ ! -x "${PAPER_VENV:-.venv-paper}/bin/python" ] ||
        tools/paper_gpu.sh || status=$?
    return "$status"
}

# Run the tests of tools/python_versions.sh with every other version of Python on PATH, and list the missing ones.
# Executes each, because pyenv also puts those on PATH that it does not run.
run_versions() {
    local status=0 minor missing=()
    for minor in 11 12 13 14; do
        if "$PYTHON" -c "import sys; sys.exit(sys.version_info[1] != $minor)"; then
            continue
        elif ! "python3.$minor" -c '' 2>/dev/null; then
            missing+=("3.$minor")
        else
            PYTHON=python3.$minor tools/python_versions.sh --numprocesses 2 || status=$?
        fi
    done
    [ ${#missing[@]} = 0 ] || echo "NOT RUN: the tests with Python ${missing[*]}, which cannot be started here." >&2
    return "$status"
}

tools/check.sh
status=0
case "$*" in
    "") selected=$("$PYTHON" -m tools.select_tests) && run_selected "$selected" || status=$? ;;
    --all)
        run_selected tests || status=$?
        PYTHON=$PYTHON tools/lowest_versions.sh --numprocesses 2 || status=$?
        # Not on a user's machine: 0.8 GB.
        [ -z "${CI:-}" ] || PYTHON=$PYTHON tools/extras.sh -rs || status=$?
        run_versions || status=$? ;;
    *) "$PYTHON" -m pytest "$@" || status=$? ;;
esac
if ! has_browser; then
    echo "NOT RUN: the tests of the page (tests/ui), because there is no Chromium here." >&2
    echo "Install it (Debian: apt install chromium) or set CHROMIUM to its path, then run ./test.sh again." >&2
    [ -z "${CI:-}" ] || status=1
fi
if ! has_slurm; then
    echo "NOT RUN: the tests on a Slurm cluster, because it is not installed here." >&2
    echo "Install it (Debian: apt install slurm-wlm munge iproute2), then run ./test.sh again." >&2
    [ -z "${CI:-}" ] || status=1
fi
if ! has_accounting; then
    echo "NOT RUN: the tests of Slurm's accounting (tests/integration/test_slurm_states.py), which need its database." >&2
    echo "Install it (Debian: apt install slurmdbd mariadb-server), which also starts it; or run them in a container." >&2
    [ -z "${CI:-}" ] || status=1
fi
if ! has_sshd; then
    echo "NOT RUN: the tests by SSH, because there is no sshd or rsync here." >&2
    echo "Install them (Debian: apt install openssh-server rsync iproute2), which also starts sshd; or run them in a container." >&2
    [ -z "${CI:-}" ] || status=1
fi
if ! has_ruby; then
    echo "NOT RUN: the test of the app for Open OnDemand, because there is no ruby here." >&2
    echo "Install it (Debian: apt install ruby), then run ./test.sh again." >&2
    [ -z "${CI:-}" ] || status=1
fi
if ! can_confine; then
    echo "NOT RUN: the tests of the sandbox for users' scripts (tests/integration/test_sandbox.py), because" >&2
    if has_bwrap; then
        echo "this machine or container does not let bwrap make one." >&2
    else
        echo "bubblewrap is not installed (Debian: apt install bubblewrap)." >&2
        [ -z "${CI:-}" ] || status=1
    fi
fi
exit "$status"
