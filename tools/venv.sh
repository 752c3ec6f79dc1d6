# Sourced by run.sh and test.sh: a virtual environment with what a requirements file asks for.
# Needs: cd'ed into the checkout. Gives: make_venv REQUIREMENTS_FILE… and $PYTHON.

PYTHON=.venv/bin/python

find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "Python 3.11 or newer is needed and was not found. On Debian or Ubuntu: sudo apt install python3 python3-venv" >&2
    return 1
}

# What an environment depends on beside the packages: the interpreter, and the place its scripts name.
origin() {
    "$1" -c 'import sys; print(*sys.version_info[:2])'
    pwd -P
}

# Whether all of it is there, with the interpreter it was made with, for this place. Both stamps are written last.
# The environment's own interpreter is asked: finding another takes half a second where pyenv stands before it.
is_installed() {
    local file
    [ -x "$PYTHON" ] && [ "$(cat .venv/origin 2>/dev/null)" = "$(origin "$PYTHON")" ] || return 1
    for file in "$@"; do
        cmp -s "$file" ".venv/$file.installed" || return 1
    done
}

make_venv() {
    local base mask
    is_installed "$@" && return
    base=$(find_python) || return 1
    if [ ! -w . ]; then
        echo "This folder cannot be written to, so nothing can be installed in it: $PWD" >&2
        return 1
    fi
    # One at a time: ./run.sh and ./test.sh may be started side by side.
    if command -v flock >/dev/null; then
        # A file that no other user can open: whoever can read one can hold it, too.
        mask=$(umask)
        umask 077
        exec 9>>.venv-lock || return 1
        umask "$mask"
        flock --nonblock 9 || { echo "Waiting for the installation that is going on in this folder …"; flock 9; }
    fi
    is_installed "$@" || install_into_venv "$base" "$@" || return 1
    exec 9>&-
}

install_into_venv() {
    local base=$1 file arguments=()
    shift
    for file in "$@"; do arguments+=(-r "$file"); done
    echo "Installing $* into .venv: once, up to 2 GB; from one to some minutes, by the network …"
    # Where pip was interrupted it takes half a package for a whole one, so then all of it is made anew.
    if [ "$(cat .venv/origin 2>/dev/null)" != "$(origin "$base")" ] || ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
        rm -rf .venv/origin .venv
        if ! "$base" -m venv .venv; then
            rm -rf .venv
            echo "The virtual environment could not be made. On Debian or Ubuntu: sudo apt install python3-venv" >&2
            return 1
        fi
    fi
    rm -f .venv/origin
    if ! "$PYTHON" -m pip install --disable-pip-version-check "${arguments[@]}"; then
        echo "The installation failed; above is why. Run this again when it is mended." >&2
        return 1
    fi
    for file in "$@"; do cp "$file" ".venv/$file.installed"; done
    origin "$base" >.venv/origin
}
