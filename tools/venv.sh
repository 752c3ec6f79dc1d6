# Sourced by run.sh and test.sh: a virtual environment with what a requirements file asks for.
# Needs: cd'ed into the checkout. Gives: make_venv REQUIREMENTS_FILE… and $PYTHON.

PYTHON=.venv/bin/python
# A torch that somebody has put into .venv is used from this release on; requirements.txt has the tested one.
OLDEST_TORCH=2.11
# What the Linux wheel of the torch in requirements.txt is built for, and the driver that this CUDA needs.
TORCH_CUDA=13.0
TORCH_DRIVER=580
# There while pip is at work; it holds the torch that was there before.
INSTALLING=.venv/installing
# The torch that pip chose, or nothing; any other is somebody's choice.
TORCH_BY_PIP=.venv/torch.by-pip

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null 2>&1 && is_new_enough "$name"; then
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

# Why `is_installed` refuses an environment, for a user who cannot make another one here.
why_not_installed() {
    local file said target next
    if [ ! -e .venv ] && [ ! -L .venv ]; then
        echo "Nothing is installed here yet: run ./run.sh --help once."
    elif ! said=$(ls -d .venv/bin/ 2>&1); then
        echo "The environment cannot be read ($said)."
    elif [ ! -L "$PYTHON" ] && [ ! -e "$PYTHON" ]; then
        echo "There is no $PYTHON: run ./run.sh --help once."
    elif ! said=$("./$PYTHON" -c '' 2>&1); then
        target=$PYTHON
        # Step by step: `readlink -f` says nothing if a folder on the way cannot be entered.
        while next=$(readlink "$target"); do
            case $next in /*) target=$next ;; *) target=$(dirname "$target")/$next ;; esac
        done
        echo "$(id -un) cannot execute the interpreter $PYTHON, which is $target: ${said##*: }." \
            "It has to be one that every user can execute, such as /usr/bin/python3; then remove .venv and run" \
            "./run.sh --help once."
    elif [ "$(cat .venv/origin 2>/dev/null)" != "$(origin "$PYTHON")" ]; then
        echo "The environment was made for another folder or another version of Python: run ./run.sh --help once."
    else
        for file in "$@"; do
            cmp -s "$file" ".venv/$file.installed" ||
                echo "The installed packages are not those of $file: run ./run.sh --help once."
        done
    fi
}

make_venv() {
    local base mask
    is_installed "$@" && return
    if [ ! -w . ]; then
        echo "$(why_not_installed "$@") You cannot write to this folder, so its owner has to do that: $PWD" >&2
        return 1
    fi
    base=$(find_python) || return 1
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

# Whether packages can be added to what lies in .venv: it works, for this place, and its interpreter is as it was.
# One without a stamp was made by hand, to put a torch of one's choice into it.
is_usable() {
    [ -x "$PYTHON" ] && is_new_enough "$PYTHON" && "$PYTHON" -m pip --version >/dev/null 2>&1 || return 1
    [ ! -e .venv/origin ] || [ "$(cat .venv/origin)" = "$(origin "$PYTHON")" ]
}

torch_in_venv() {
    "$PYTHON" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null
}

# Whether the first of two versions is the second or a later one.
is_at_least() {
    [ "$(printf '%s\n' "$2" "${1%%+*}" | sort -V | head -n 1)" = "$2" ]
}

# The torch that pip chose. Where an environment is older than that stamp: the one its requirements named.
torch_by_pip() {
    cat "$TORCH_BY_PIP" 2>/dev/null || sed -n 's/^torch==//p' .venv/requirements.txt.installed 2>/dev/null
}

# The torch that somebody has put into .venv, where it can be used; says which it is, and what becomes of it.
chosen_torch() {
    local found
    found=$(torch_in_venv) || return 1
    [ "$found" != "$(torch_by_pip)" ] || return 1
    if ! is_at_least "$found" "$OLDEST_TORCH"; then
        echo "torch $found in .venv is too old: $OLDEST_TORCH or newer is needed, so pip replaces it." >&2
        return 1
    fi
    echo "Using torch $found, which is in .venv already (tested with $1): no other is downloaded." >&2
    echo "$found"
}

say_which_torch_comes() {
    cat <<END
pip now fetches torch $1. Unless it is told of another index (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or pip's own
configuration), on Linux this is the build for CUDA $TORCH_CUDA: gigabytes, and its GPUs need an NVIDIA driver from
$TORCH_DRIVER on. For the small build without CUDA (a laptop without a GPU), or one for an older driver, stop this now
(Ctrl+C), put that torch into .venv first, with the index that PyTorch's installation page names for it, and start
again:
    python3 -m venv --clear .venv && .venv/bin/pip install torch==$1 --index-url INDEX
END
}

# What a file asks for but torch, which is there already.
without_torch() {
    grep -v '^torch==' "$1" >".venv/$1.without-torch"
    echo ".venv/$1.without-torch"
}

install_into_venv() {
    local base=$1 file pinned chosen="" options=() arguments=()
    shift
    pinned=$(sed -n 's/^torch==//p' requirements.txt)
    echo "Installing $* into .venv: once; from one to some minutes, by the network …"
    # Where pip was interrupted it takes half a package for a whole one, so then all of it is made anew, but
    # for a torch that was there before.
    if [ -e "$INSTALLING" ] && is_usable && [ -s "$INSTALLING" ] &&
        [ "$(torch_in_venv)" = "$(cat "$INSTALLING")" ]; then
        options=(--ignore-installed)
    elif [ -e "$INSTALLING" ] || ! is_usable; then
        [ ! -e .venv ] || echo "What lies in .venv is half an installation or of no use here: it is made anew."
        rm -rf .venv/origin .venv
        if ! "$base" -m venv .venv; then
            rm -rf .venv
            echo "The virtual environment could not be made. On Debian or Ubuntu: sudo apt install python3-venv" >&2
            return 1
        fi
    fi
    if chosen=$(chosen_torch "$pinned"); then
        for file in "$@"; do arguments+=(-r "$(without_torch "$file")"); done
    else
        for file in "$@"; do arguments+=(-r "$file"); done
        [ "$(torch_in_venv | cut -d+ -f1)" = "$pinned" ] || say_which_torch_comes "$pinned"
    fi
    rm -f .venv/origin
    printf '%s' "$chosen" >"$INSTALLING"
    if ! "$PYTHON" -m pip install --disable-pip-version-check "${options[@]}" "${arguments[@]}"; then
        echo "The installation failed; above is why. Run this again when it is mended." >&2
        return 1
    fi
    if [ -n "$chosen" ]; then : >"$TORCH_BY_PIP"; else torch_in_venv >"$TORCH_BY_PIP"; fi
    for file in "$@"; do cp "$file" ".venv/$file.installed"; done
    origin "$PYTHON" >.venv/origin
    rm -f "$INSTALLING"
}
