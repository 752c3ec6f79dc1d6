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

# What an environment was made from: the wanted packages, the interpreter and the place.
fingerprint() {
    { cat "$1"; "$2" --version; pwd; } | "$2" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# A stamp per file, written last, says that all of it is there: what was interrupted is done again.
make_venv() {
    local base file missing=() arguments=()
    base=$(find_python) || return 1
    for file in "$@"; do
        if [ ! -x "$PYTHON" ] || [ "$(cat ".venv/$file.installed" 2>/dev/null)" != "$(fingerprint "$file" "$base")" ]; then
            missing+=("$file")
            arguments+=(-r "$file")
        fi
    done
    [ "${#missing[@]}" = 0 ] && return
    if [ ! -w . ]; then
        echo "This folder cannot be written to, so nothing can be installed in it: $PWD" >&2
        return 1
    fi
    echo "Installing ${missing[*]} into .venv: once, up to 2 GB; from one to some minutes, by the network …"
    if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        if ! "$base" -m venv .venv; then
            rm -rf .venv
            echo "The virtual environment could not be made. On Debian or Ubuntu: sudo apt install python3-venv" >&2
            return 1
        fi
    fi
    for file in "${missing[@]}"; do rm -f ".venv/$file.installed"; done
    if ! "$PYTHON" -m pip install --disable-pip-version-check "${arguments[@]}"; then
        echo "The installation failed; above is why. Run this again when it is mended: it goes on where it was." >&2
        return 1
    fi
    for file in "${missing[@]}"; do fingerprint "$file" "$base" >".venv/$file.installed"; done
}
