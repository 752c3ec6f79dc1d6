"""The page's port on this machine: lets its own user through to what ssh forwards, and nobody else.

ssh could listen on a port itself, but it would let in every user of this machine.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from ddp_gui.http import local_users

HOST = "127.0.0.1"
PIECE_BYTES = 65_536


class Doorway:
    """Listens on a port of this machine, and passes each connection on to a socket in the file system.

    Args:
        port: 0: any that is free.
        behind: where ssh listens.

    Attributes:
        leads_on: whether a page answers behind it; while none does, connections are closed.

    Raises:
        OSError: when the port cannot be used.
    """

    def __init__(self, port: int, behind: Path) -> None:
        self._behind = behind
        self.leads_on = threading.Event()
        self._listening = socket.create_server((HOST, port))
        self.port: int = self._listening.getsockname()[1]

    def open(self) -> None:
        """Let connections in, in threads, until this process ends."""
        threading.Thread(target=self._let_in, name="doorway", daemon=True).start()

    def _let_in(self) -> None:
        while True:
            client, address = self._listening.accept()
            if not self.leads_on.is_set() or not local_users.is_own(address, client.getsockname()):
                client.close()
                continue
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as page:
            try:
                page.connect(str(self._behind))
            except OSError:
                return  # the browser hears that nothing is there, and tries again
            back = threading.Thread(target=_copy, args=(page, client), daemon=True)
            back.start()
            _copy(client, page)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until one side has had enough; then tell the other."""
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(how)
