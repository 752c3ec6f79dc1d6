"""Attack a job as another user of this machine, through everything this user can reach.

    python -m tests.port_attacker UID FOLDER PID…

FOLDER is writable for everyone; the processes are those of the job. Prints one JSON object: which files of
the processes could be opened, which ports answered as a TCPStore, and what was sent to each port. A planted
pickle creates a file in FOLDER when it is loaded; its owner is the user who loaded it.
"""

from __future__ import annotations

import base64
import contextlib
import encodings.idna  # noqa: F401 - the other user cannot read Python's folder
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from torch.distributed import TCPStore

from tests.harness import REPOSITORY
from tests.other_user import UID

CONNECT_S = 2.0
PLANT_S = 4.0
LOOPBACK = {"127.0.0.1", "::1"}
GARBAGE = (b"", b"\x00" * 64, b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n")


class Planted:
    """Create a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (self.path, 0o644)


def become(uid: int) -> None:
    """Switch to another user permanently, like `setpriv --reuid --regid --clear-groups`."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def listening_ports(pids: Iterable[int]) -> dict[int, str]:
    """Return the listening ports of processes with their addresses. Call this before dropping privileges."""
    found = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in psutil.Process(pid).net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.port] = connection.laddr.ip
    return found


def open_what_is_theirs(pids: Iterable[int]) -> list[str]:
    """Return the descriptors, environments and memory files of the processes that could be opened."""
    opened = []
    for pid in pids:
        # The folder may not be readable, so try the small numbers that processes typically have.
        for name in ["environ", "mem", *(f"fd/{number}" for number in range(3, 64))]:
            with contextlib.suppress(OSError):
                os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_NONBLOCK))
                opened.append(f"{pid}/{name}")
    return opened


def plant(port: int, folder: Path) -> list[str]:
    """Write a pickle to every key of a store; return the keys, or [] if no store answers."""
    try:
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=CONNECT_S),
        )
        keys = list(store.list_keys())
    except RuntimeError:
        return []
    # Encode the value as torchrun's rendezvous encodes its state.
    pickled = pickle.dumps(Planted(str(folder / f"planted_{port}")))
    for key in keys:
        store.set(key, base64.b64encode(pickled).decode())
    return keys


def plant_everywhere(ports: Iterable[int], folder: Path) -> dict[int, list[str]]:
    """Plant in every store that answers; return the keys by port. Other servers leave the client waiting."""
    found: dict[int, list[str]] = {}

    def try_one(port: int) -> None:
        if keys := plant(port, folder):
            found[port] = keys

    tries = [threading.Thread(target=try_one, args=(port,), daemon=True) for port in ports]
    for one in tries:
        one.start()
    deadline = time.monotonic() + PLANT_S
    for one in tries:
        one.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def disturb(port: int) -> int:
    """Send invalid data and keep the connections open; return the number of accepted connections."""
    taken = 0
    for garbage in GARBAGE:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), CONNECT_S)
            connection.sendall(garbage)
            KEPT.append(connection)
            taken += 1
    return taken


KEPT: list[socket.socket] = []


def family(pid: int) -> list[int]:
    """Return the PIDs of a process and its descendants."""
    found = psutil.Process(pid)
    return [pid, *(child.pid for child in found.children(recursive=True))]


def attack(pids: Sequence[int], open_folder: Path) -> dict[str, Any]:
    """Attack these processes as another user; return the report."""
    command = [sys.executable, "-m", "tests.port_attacker", str(UID), str(open_folder), *map(str, pids)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["uid"] == UID
    return report


def main() -> None:
    """Run the attack and print the report."""
    uid, folder, pids = int(sys.argv[1]), Path(sys.argv[2]), [int(pid) for pid in sys.argv[3:]]
    ports = listening_ports(pids)
    become(uid)
    stores = plant_everywhere(ports, folder)
    report = {
        "uid": os.getuid(),
        "ports": ports,
        "opened": open_what_is_theirs(pids),
        "stores": stores,
        "disturbed": {port: disturb(port) for port in ports if port not in stores},
    }
    print(json.dumps(report), flush=True)
    os._exit(0)  # a client thread may still be waiting for a port without a store


if __name__ == "__main__":
    main()
