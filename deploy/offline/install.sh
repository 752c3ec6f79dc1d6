#!/bin/sh
# Installs Rankscope from this folder, without a network: ./install.sh [FOLDER]
# The command is FOLDER/bin/rankscope. Without FOLDER: below ~/.local/share, with a link in ~/.local/bin and an
# entry in the menu of applications. PYTHON names an interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${XDG_DATA_HOME:-$HOME/.local/share}/rankscope/program}

fail() {
    echo "Rankscope was not installed: $1" >&2
    exit 1
}

(cd "$here" && sha256sum --quiet --check SHA256SUMS) ||
    fail "the files named above are damaged or missing. Copy and unpack the archive again."

version=$(cat "$here/python-version")
for python in "${PYTHON:-python$version}" python3; do
    [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ] || break
    python=
done
[ -n "$python" ] || fail "this archive is for Python $version, which was not found. PYTHON=/path/to/python names one."
[ ! -e "$folder" ] || [ -e "$folder/pyvenv.cfg" ] ||
    fail "$folder exists and is not an environment of Python. Name another folder."

echo "Installing into $folder …"
"$python" -m venv --clear --without-pip "$folder" || fail "no environment could be made; the reason is above."
pip=$(echo "$here"/wheels/pip-*.whl)
"$folder/bin/python" "$pip/pip" --disable-pip-version-check install --quiet --no-index \
    --find-links "$here/wheels" --requirement "$here/requirements.txt" rankscope pip ||
    fail "the message of pip is above."
echo "Installed: $folder/bin/rankscope"
[ $# = 0 ] || exit 0
mkdir -p "$HOME/.local/bin"
ln -sf "$folder/bin/rankscope" "$HOME/.local/bin/rankscope"
"$folder/bin/rankscope" add-to-menu || true
echo "To open the page: rankscope, or ~/.local/bin/rankscope if that folder is not in your PATH."
