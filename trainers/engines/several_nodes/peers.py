"""How launchers find each other."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainers.contract.config import Config
from trainers.engines.local import hang_watch
from trainers.files.json_files import parse_json
from trainers.machine import host

# A documentation address (RFC 5737): the way to it is the way out of this machine. Nothing is sent.
_OUTSIDE = "192.0.2.1"
_ANY_PORT = 9


def interface_towards(address: str) -> str | None:
    """Return the interface that packets to a host leave by; None where it is not known.

    To this machine's own address it is the interface that has it. Debian's line `127.0.1.1 HOST` lets the
    machine's own name mean loopback, but only here: then it is the way out.
    """
    own = own_address(address)
    if own is not None and is_loopback(own) and not _means_loopback(address):
        own = own_address(_OUTSIDE)
    return next((name for name, addresses in host.interfaces().items() if own in addresses), None)


def own_address(towards: str) -> str | None:
    """Return which of its addresses this machine uses towards a host, None without a way; nothing is sent."""
    try:
        found = socket.getaddrinfo(towards, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as asked:
            try:
                asked.connect(place)
            except OSError:
                continue
            return str(asked.getsockname()[0]).partition("%")[0]
    return None


def _means_loopback(address: str) -> bool:
    return address == "localhost" or is_loopback(address)


def is_loopback(address: str) -> bool:
    """True if an address, not a name, is one of loopback."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


ASK_EVERY_S = 1.0
# Of an answer every second: a busy machine may be late with one or two.
UNREACHABLE_AFTER_S = 4.0
MAX_BYTES = 512
# Of a node in the eyes of another one, which may be cut off itself and then vouches for nobody.
Standing = Literal["good", "unknown", "given up"]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a launcher answers, and the key that a question to it needs."""

    address: str
    port: int
    key: str


@dataclass
class _Peer:
    endpoint: Endpoint
    place: tuple[Any, ...]
    number: str = ""
    silent_s: float = 0.0
    has_answered: bool = False
    is_good: bool = False


class Peers:
    """The other launchers as this one reaches them.

    Args:
        address: of this node, as the others reach it.
        standing_of: returns what this node thinks of another one.
        note: called after each round of questions.
        given_up: called when a node that this one depends on has given it up.
    """

    def __init__(
        self,
        node: int,
        address: str,
        *,
        bind_to: str,
        standing_of: Callable[[int], Standing],
        note: Callable[[], None] = lambda: None,
        given_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._standing_of = standing_of
        self._note, self._given_up = note, given_up
        family = socket.AF_INET6 if ":" in bind_to else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((bind_to, 0))
        self._socket.settimeout(ASK_EVERY_S / 4)
        port = self._socket.getsockname()[1]
        self.endpoint = Endpoint(address=address, port=port, key=secrets.token_hex(16))
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._talk, name="peers", daemon=True)

    def begin(self) -> None:
        """Ask and answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Ask and answer no more."""
        self._is_over.set()

    def learn(self, endpoints: Mapping[int, Endpoint]) -> None:
        """Note where other launchers answer."""
        for node, endpoint in endpoints.items():
            known = self._peers.get(node)
            if node == self._node or (known is not None and known.endpoint == endpoint):
                continue
            with contextlib.suppress(OSError):  # a name that is not known now: learned again in a second
                found = socket.getaddrinfo(
                    endpoint.address, endpoint.port, self._socket.family, socket.SOCK_DGRAM
                )
                with self._lock:
                    self._peers[node] = _Peer(endpoint=endpoint, place=found[0][4])

    def endpoints(self) -> dict[int, Endpoint]:
        """Return where each launcher answers, this one included."""
        with self._lock:
            return {self._node: self.endpoint} | {node: peer.endpoint for node, peer in self._peers.items()}

    def unreachable(self) -> dict[int, float]:
        """Return for how many seconds each node has not answered that answered before."""
        with self._lock:
            return {
                node: round(peer.silent_s, 1)
                for node, peer in self._peers.items()
                if peer.has_answered and peer.silent_s >= UNREACHABLE_AFTER_S
            }

    def vouch(self, num_nodes: int) -> bool:
        """True if those that this node depends on vouch for it: node 0, or all others for node 0."""
        needed = range(1, num_nodes) if self._node == 0 else (0,)
        with self._lock:
            return len(needed) > 0 and all(
                (peer := self._peers.get(node)) is not None
                and peer.is_good
                and peer.silent_s < UNREACHABLE_AFTER_S
                for node in needed
            )

    def _talk(self) -> None:
        asked_at = float("-inf")
        looked_at = time.monotonic()
        while not self._is_over.is_set():
            now = time.monotonic()
            passed_s, looked_at = hang_watch.counted_s(now - looked_at), now
            with self._lock:
                for peer in self._peers.values():
                    peer.silent_s += passed_s
            if now - asked_at >= ASK_EVERY_S:
                asked_at = now
                self._ask_all()
                self._note()
            try:
                data, place = self._socket.recvfrom(MAX_BYTES)
            except OSError:  # nothing came, or the network is down
                self._is_over.wait(0.01)
                continue
            self._take(data, place)
        self._socket.close()

    def _ask_all(self) -> None:
        with self._lock:
            peers = list(self._peers.items())
        for _, peer in peers:
            peer.number = peer.number or secrets.token_hex(8)
            question = {"key": peer.endpoint.key, "from": self._node, "number": peer.number}
            self._send(question, peer.place)

    def _take(self, data: bytes, place: Any) -> None:
        try:
            said = parse_json(data)
        except ValueError:
            return
        if not isinstance(said, dict) or not isinstance(said.get("from"), int):
            return
        node, number = said["from"], said.get("number")
        if "key" in said:
            if isinstance(number, str) and self._is_own_key(said["key"]):
                standing = self._standing_of(node)
                self._send({"from": self._node, "number": number, "standing": standing}, place)
            return
        with self._lock:
            peer = self._peers.get(node)
            if peer is None or not peer.number or number != peer.number:
                return
            peer.number, peer.silent_s, peer.has_answered = "", 0.0, True
            peer.is_good = said.get("standing") == "good"
        if said.get("standing") == "given up":
            self._given_up()

    def _is_own_key(self, key: Any) -> bool:
        """Compare bytes: text that is not ASCII is refused with an error."""
        said = str(key).encode("utf-8", "replace")
        return secrets.compare_digest(said, self.endpoint.key.encode())

    def _send(self, values: Mapping[str, Any], place: Any) -> None:
        with contextlib.suppress(OSError):  # a network that is down: the silence is what counts
            self._socket.sendto(json.dumps(values).encode(), place)


def read_endpoints(values: Any) -> dict[int, Endpoint]:
    """Return the endpoints that a node has reported.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: when they make no sense.
    """
    return {
        int(node): Endpoint(address=str(told["address"]), port=int(told["port"]), key=str(told["key"]))
        for node, told in values.items()
    }


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of the machines that train a run together.

    Attributes:
        rank: its number, from 0; node 0 is where all meet.
        num_nodes: how many there are.
        head: name or address of node 0.
        port: of node 0, for the store of torchrun and its ranks.
    """

    rank: int
    num_nodes: int
    head: str
    port: int

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    def ranks(self, config: Config) -> range:
        """Return the ranks on this node."""
        return range(self.rank * config.nproc_per_node, (self.rank + 1) * config.nproc_per_node)

    def torchrun_arguments(self, config: Config, run_dir: Path, resume_step: int | None) -> list[str]:
        """Return torchrun's arguments on this node."""
        resume = [] if resume_step is None else ["--resume", str(resume_step)]
        return [
            *self.meeting_arguments(config.nproc_per_node),
            *("-m", "trainers.worker", str(run_dir), *resume),
        ]

    def meeting_arguments(self, num_ranks: int) -> list[str]:
        """Return those of torchrun's arguments that say where all meet.

        Args:
            num_ranks: on each node.
        """
        return [
            *("--nnodes", str(self.num_nodes), "--node-rank", str(self.rank)),
            *("--master-addr", self.head, "--master-port", str(self.port)),
            *("--nproc-per-node", str(num_ranks)),
        ]

    @property
    def address(self) -> str:
        """Where the other nodes reach this one: node 0 by its name, as all of them do."""
        return self.head if self.is_head else own_address(self.head) or ""

    @property
    def bind_to(self) -> str:
        """Where this node listens for the other launchers.

        On all interfaces where its own name leads to loopback: which one the others reach is not known then.
        """
        address = own_address(self.head)
        return "0.0.0.0" if address is None or is_loopback(address) else address  # noqa: S104

    def environment(self) -> Mapping[str, str]:
        """Return what torchrun is told: the address of this node that others reach.

        A host's own name often leads to 127.0.1.1, where no other node can reach it.

        Raises:
            OSError: when there is no way to the head.
        """
        if (address := own_address(self.head)) is None:
            raise OSError(f"there is no way from this node to {self.head}, where all nodes meet")
        return {"PET_LOCAL_ADDR": address}
