# Sourced by run.sh and test.sh: creates a virtual environment with the packages of requirements files.
# The current folder must be the checkout. Defines take_torch_build OPTION…, make_venv REQUIREMENTS_FILE…, $PYTHON.

PYTHON=.venv/bin/python
# The oldest torch installed by a user that is accepted; requirements.txt pins the tested one.
OLDEST_TORCH=2.11
# Exists while pip runs; contains the version of the torch installed by a user, if any.
INSTALLING=.venv/installing
# The version of torch that this script installed, or empty; any other was installed by a user.
TORCH_BY_PIP=.venv/torch.by-pip
# The driver for which torch was chosen: after a change of the driver another build may fit.
DRIVER=.venv/driver
# Complete and partial wheels until they are installed, so that an interrupted download can be continued.
DOWNLOADS=.venv-download
# The value of --torch-build: torch is replaced if it is another build.
REPLACE_BY=

# Parse --torch-build, and store the other options in OPTIONS.
take_torch_build() {
    OPTIONS=()
    while [ $# -gt 0 ]; do
        case $1 in
            --torch-build=*) REPLACE_BY=${1#*=} ;;
            --torch-build)
                [ $# -gt 1 ] || { echo "--torch-build needs the name of a build: README lists them." >&2; return 1; }
                REPLACE_BY=$2
                shift ;;
            *) OPTIONS+=("$1") ;;
        esac
        shift
    done
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3.14 python3; do
        if command -v "$name" >/dev/null 2>&1 && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "Python 3.11 or newer is needed and was not found. On Debian or Ubuntu: sudo apt install python3 python3-venv" >&2
    return 1
}

# Print the version of the interpreter and the folder, on which an environment depends besides the packages.
origin() {
    "$1" -c 'import sys; print(*sys.version_info[:2])'
    pwd -P
}

# True if all packages are installed, with the same interpreter and folder. Both stamps are written last. Runs the
# environment's interpreter, because finding another takes half a second with pyenv.
is_installed() {
    local file
    [ -x "$PYTHON" ] && [ "$(cat .venv/origin 2>/dev/null)" = "$(origin "$PYTHON")" ] || return 1
    for file in "$@"; do
        cmp -s "$file" ".venv/$file.installed" || return 1
    done
}

# Print the reason why `is_installed` fails, for a user who cannot create an environment here.
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
        # Step by step, because `readlink -f` prints nothing if a folder on the path is not accessible.
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

# True if everything is installed, with the build of torch that --torch-build names.
is_complete() {
    is_installed "$@" || return 1
    [ -z "$REPLACE_BY" ] || "$PYTHON" -m tools.torch_build is-installed .venv "$REPLACE_BY"
}

make_venv() {
    local base mask
    if ! is_complete "$@"; then
        if [ ! -w . ]; then
            echo "$(why_not_installed "$@") You cannot write to this folder, so its owner has to do that: $PWD" >&2
            return 1
        fi
        base=$(find_python) || return 1
        # A lock, because ./run.sh and ./test.sh may run simultaneously.
        if command -v flock >/dev/null; then
            # No other user may open the lock file, because read access is sufficient to lock it.
            mask=$(umask)
            umask 077
            exec 9>>.venv-lock || return 1
            umask "$mask"
            flock --nonblock 9 || { echo "Waiting for another installation in this folder …"; flock 9; }
        fi
        is_complete "$@" || install_into_venv "$base" "$@" || return 1
        exec 9>&-
    fi
    # Reading these files is fast; the slower comparison with torch runs only after a change.
    if [ "$(read_driver)" != "$(cat "$DRIVER" 2>/dev/null)" ] &&
        "$PYTHON" -m tools.torch_build compare .venv && [ -w .venv ]; then
        read_driver >"$DRIVER"
    fi
}

# Print text that changes when an NVIDIA driver is installed, updated or removed, or a GPU is passed into a
# container; nothing without a driver or GPU. On WSL2 the driver is the one of Windows.
read_driver() {
    cat /proc/driver/nvidia/version 2>/dev/null || true
    ls -d /dev/dxg /dev/nvidia[0-9]* 2>/dev/null || true
}

# True if packages can be added to .venv: it works, and its folder and interpreter are unchanged. A user created an
# environment without a stamp, to install a torch of their choice.
is_usable() {
    [ -x "$PYTHON" ] && is_new_enough "$PYTHON" && "$PYTHON" -m pip --version >/dev/null 2>&1 || return 1
    [ ! -e .venv/origin ] || [ "$(cat .venv/origin)" = "$(origin "$PYTHON")" ]
}

torch_in_venv() {
    "$PYTHON" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null
}

# True if the first version is equal to the second or later.
is_at_least() {
    [ "$(printf '%s\n' "$2" "${1%%+*}" | sort -V | head -n 1)" = "$2" ]
}

# Print the version of torch that pip chose. Environments older than that stamp: the version in their requirements.
torch_by_pip() {
    cat "$TORCH_BY_PIP" 2>/dev/null || sed -n 's/^torch==//p' .venv/requirements.txt.installed 2>/dev/null
}

# Print the version of a usable torch installed by a user in .venv, and report whether it is used or replaced.
chosen_torch() {
    local found
    found=$(torch_in_venv) || return 1
    [ "$found" != "$(torch_by_pip)" ] || return 1
    if ! is_at_least "$found" "$OLDEST_TORCH"; then
        echo "torch $found in .venv is too old: $OLDEST_TORCH or newer is needed, so pip replaces it." >&2
        return 1
    fi
    echo "Using torch $found, which is already in .venv (tested with $1): no other is downloaded." >&2
    echo "$found"
}

# Write a copy of a requirements file without torch, which is already installed, and print its path.
without_torch() {
    grep -v '^torch==' "$1" >".venv/$1.without-torch"
    echo ".venv/$1.without-torch"
}

# Report a full disk after a failed step: programs often report it many lines earlier, or not at all.
say_if_full() {
    local free_kb
    free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "${free_kb:-999999}" -ge 100000 ] ||
        echo "The disk is full: $((free_kb / 1000)) MB are free in $PWD. Make room and start again." >&2
}

# Create an empty environment with pip.
make_empty_venv() {
    local said
    rm -rf .venv/origin .venv
    said=$("$1" -m venv .venv 2>&1) && return
    rm -rf .venv
    echo "$said" >&2
    echo "The virtual environment could not be made; the reason is above." >&2
    case $said in *"ensurepip is not available"*) echo "On Debian or Ubuntu: sudo apt install python3-venv" >&2 ;; esac
    say_if_full
    return 1
}

# Write the stamps. `origin` is the last; without it the environment counts as not installed.
stamp() {
    local file
    if [ -n "$1" ]; then : >"$TORCH_BY_PIP"; else torch_in_venv >"$TORCH_BY_PIP"; fi || return 1
    shift
    for file in "$@"; do cp "$file" ".venv/$file.installed" || return 1; done
    read_driver >"$DRIVER" && origin "$PYTHON" >.venv/origin.new && mv .venv/origin.new .venv/origin
}

# `set -e` has no effect in this function, because the caller tests its result, so each step is checked.
install_into_venv() {
    local base=$1 file pinned chosen="" wheel="" is_to_be_replaced="" options=() arguments=()
    shift
    pinned=$(sed -n 's/^torch==//p' requirements.txt)
    echo "Installing $* into .venv: once; a minute or more, besides the download …"
    # pip accepts partially installed packages, so after an interruption everything is installed again, except
    # for a torch installed before. Downloaded files stay in pip's cache and in $DOWNLOADS.
    if [ -e "$INSTALLING" ] && is_usable && [ -s "$INSTALLING" ] &&
        [ "$(torch_in_venv)" = "$(cat "$INSTALLING")" ]; then
        options=(--ignore-installed)
    elif [ -e "$INSTALLING" ] || ! is_usable; then
        [ ! -e .venv ] || echo "The environment in .venv is incomplete or unusable: it is replaced."
        make_empty_venv "$base" || return 1
    fi
    if [ -n "$REPLACE_BY" ] && ! "$PYTHON" -m tools.torch_build is-installed .venv "$REPLACE_BY"; then
        is_to_be_replaced=yes
    fi
    if [ -z "$is_to_be_replaced" ] && chosen=$(chosen_torch "$pinned"); then
        for file in "$@"; do arguments+=(-r "$(without_torch "$file")"); done
    else
        if [ -n "$is_to_be_replaced" ] || [ "$(torch_in_venv | cut -d+ -f1)" != "$pinned" ]; then
            wheel=$("$PYTHON" -m tools.torch_build fetch "$DOWNLOADS" \
                "${REPLACE_BY:-${DDP_TORCH_BUILD:-auto}}" "$@") || { say_if_full; return 1; }
        fi
        # The wheel satisfies the line of the requirements that pins torch: 2.13.0+cpu matches 2.13.0.
        [ -z "$wheel" ] || arguments+=("$wheel")
        for file in "$@"; do arguments+=(-r "$file"); done
    fi
    # pip unpacks gigabytes into this folder, because /tmp may be small or in memory.
    if ! { rm -f .venv/origin && printf '%s' "$chosen" >"$INSTALLING" && mkdir -p "$DOWNLOADS"; }; then
        say_if_full
        return 1
    fi
    if [ -n "$is_to_be_replaced" ] && torch_in_venv >/dev/null; then
        "$PYTHON" -m pip uninstall --yes --quiet torch || return 1
    fi
    if ! TMPDIR=$PWD/$DOWNLOADS "$PYTHON" -m pip install --disable-pip-version-check \
        ${options[@]+"${options[@]}"} "${arguments[@]}"; then  # bash 3.2 of a Mac: an empty list is "unbound"
        echo "The installation failed; the reason is above. Fix it and start again: downloaded files are kept." >&2
        say_if_full
        return 1
    fi
    if ! stamp "$chosen" "$@"; then
        say_if_full
        return 1
    fi
    rm -rf "$INSTALLING" "$DOWNLOADS"
}

# make_overlay PYTHON VENV: create an environment that has all packages of PYTHON's; its own come first in sys.path.
make_overlay() {
    "$1" -m venv --without-pip "$2"
    "$1" -c 'import sys; print(*(path for path in sys.path if path.endswith("site-packages")), sep="\n")' \
        >"$(echo "$2"/lib/python3*/site-packages)/others.pth"
}
