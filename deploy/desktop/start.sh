#!/bin/sh
# Starts Rankscope in the browser, for people without a terminal; called by the files next to it. It starts the
# installed program, else this folder's checkout, else installs this folder's offline archive.
here=$(cd "$(dirname "$0")" && pwd)

end() {
    echo
    echo "$1"
    echo "Press Enter to close this window."
    read -r _
    exit 1
}

find_python() {
    for python in python3.13 python3.12 python3.11 python3.14 python3; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    case $(uname) in
        Darwin) end "Python 3.11 or newer is missing. Get it from https://www.python.org/downloads, then start again." ;;
        *) end "Python 3.11 or newer is missing. In a terminal: sudo apt install python3 python3-venv" ;;
    esac
}

for command in rankscope "$HOME/.local/bin/rankscope"; do
    command -v "$command" >/dev/null 2>&1 && exec "$command" start "$@"
done
if [ -f "$here/../../run.sh" ]; then
    find_python
    case $here in
        # On the disk of Windows an environment of Python takes minutes to start.
        /mnt/?/*)
            [ -d "$HOME/rankscope" ] || { echo "Copying the project into Linux …"; cp -r "$here/../.." "$HOME/rankscope"; }
            here=$HOME/rankscope/deploy/desktop ;;
    esac
    [ -w "$here/../.." ] || [ -d "$here/../../.venv" ] ||
        end "This folder cannot be written to: copy the whole project into your home folder, and start it there."
    exec "$python" "$here/../../rankscope/first_start.py" "$@"
fi
if [ -f "$here/../install.sh" ]; then
    sh "$here/../install.sh" || end "The reason is above."
    exec "$HOME/.local/bin/rankscope" start "$@"
fi
end "Rankscope is not installed. In a terminal: pipx install rankscope-….whl (docs/install.md)"
