"""Tries to escape the sandbox and prints the results as JSON. Arguments: page, data, another run, port."""

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

page, data, other, port = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
run = Path(__file__).resolve().parents[1]
got = {}


def attempt(name, action):
    try:
        got[name] = action()
    except (OSError, ValueError) as error:
        got[name] = f"refused: {type(error).__name__}"


def connect():
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        return connection.recv(10).decode()


def write(path):
    path.write_text("changed by the script")
    return "written"


def through_processes():
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                return (each / "root" / page.relative_to("/") / "accounts.json").read_text()
            except OSError:
                continue
    return "refused: no process leads out"


attempt("network", connect)
attempt("other_network", lambda: socket.create_connection(("10.0.0.1", 80), timeout=1) and "connected")
attempt("accounts", lambda: (page / "accounts.json").read_text())
attempt("other_run", lambda: (other / "config.json").read_text())
attempt("home", lambda: sorted(os.listdir(Path("~").expanduser())))
attempt("root_home", lambda: sorted(os.listdir("/root")))
attempt("temporary", lambda: sorted(name for name in os.listdir("/tmp") if "secret" in name))
attempt("own_temporary", lambda: Path(tempfile.mkstemp()[1]).exists())
attempt("data", lambda: (data / "samples.txt").read_text())
attempt("write_data", lambda: write(data / "samples.txt"))
for own in ("config.json", "status.json", "confined.json", "code/attack.py", "code/new.py"):
    attempt(f"write_{own}", lambda path=run / own: write(path))
attempt("own_work", lambda: write(Path("model.pt")))
attempt("processes", through_processes)
attempt("environment", lambda: sorted(name for name in os.environ if "SECRET" in name or "TOKEN" in name))
print("GOT", json.dumps(got), flush=True)
