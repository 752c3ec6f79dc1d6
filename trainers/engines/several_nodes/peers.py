"""Addresses of the nodes, and UDP messages by which launchers check each other.

Each launcher sends a question to every other launcher once a second. An answer proves that the network
between the two works. It also says whether the answering node considers the other node alive. Files in the
run's folder cannot replace this: a node without a connection to the others may still reach the file server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.contract.config import Config
from trainers.engines.local import hang_watch
from trainers.files.json_files import parse_json
from trainers.machine import host

# Ports for the rendezvous of runs: below Linux's ephemeral ports (32768 and up), which gloo uses.
FIRST_PORT, NUM_PORTS = 29_600, 3_000
# A documentation address (RFC 5737), whose route is the default route. Nothing is sent to it.
_OUTSIDE_ADDRESS = "192.0.2.1"
_ANY_PORT = 9


def interface_towards(address: str) -> str | None:
    """Return the interface of the route to a host; None if unknown.

    For this machine's own address, this is the interface with that address. Debian's line `127.0.1.1 HOST`
    makes a machine resolve its own name to loopback; in that case return the interface of the default route.
    """
    own_address = local_address(address)
    if own_address is not None and is_loopback(own_address) and not _names_loopback(address):
        own_address = local_address(_OUTSIDE_ADDRESS)
    return next((name for name, addresses in host.interfaces().items() if own_address in addresses), None)


def local_address(target: str) -> str | None:
    """Return this machine's address on the route to a host; None without a route. Nothing is sent."""
    try:
        entries = socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, socket_address in entries:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(socket_address)
            except OSError:
                continue
            return str(probe.getsockname()[0]).partition("%")[0]
    return None


def _names_loopback(address: str) -> bool:
    return address == "localhost" or is_loopback(address)


def is_loopback(address: str) -> bool:
    """True if a text is a loopback address, not a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


ASK_EVERY_S = 1.0
# Answers arrive every second; on a busy machine they may be a second or two late.
UNREACHABLE_AFTER_S = 4.0
MAX_BYTES = 512
# At most `LOST_AFTER_S`, so that a silent node's ranks have ended when the other nodes consider it lost.
LEASE_S = 20.0
LEASE_POLL_S = 0.25


class Lease:
    """Calls `end` once, in its own thread, if nothing renews the lease for `LEASE_S`.

    Time during which this process was suspended does not count, because all machines may have been suspended.
    If only this launcher was suspended, it learns from the shared folder that its start is over.
    """

    def __init__(self, end: Callable[[], None], length_s: float = LEASE_S) -> None:
        self._end = end
        self._length_s = length_s
        self._num_renewals = 0
        self._silent_s = 0.0
        self._must_end = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._enforce, name="lease", daemon=True)

    def begin(self) -> None:
        """Start enforcing the lease."""
        self._thread.start()

    def renew(self) -> None:
        """Renew the lease. May be called from any thread."""
        self._num_renewals += 1

    @property
    def is_fresh(self) -> bool:
        """True if the lease was renewed recently, so that this launcher may confirm other nodes."""
        return self._silent_s < self._length_s / 2

    def end_now(self) -> None:
        """End this launcher without delay: its start is over."""
        self._must_end.set()

    def close(self) -> None:
        """Stop enforcing the lease."""
        self._is_over.set()

    def _enforce(self) -> None:
        last_count, checked_at = self._num_renewals, time.monotonic()
        while not self._is_over.is_set():
            must_end = self._must_end.wait(LEASE_POLL_S)
            now = time.monotonic()
            elapsed_s, checked_at = hang_watch.counted_s(now - checked_at), now
            count = self._num_renewals
            self._silent_s = 0.0 if count != last_count else self._silent_s + elapsed_s
            last_count = count
            if must_end or self._silent_s >= self._length_s:
                self._end()
                return


@dataclass(frozen=True, kw_only=True)
class PeerEndpoint:
    """Address and port of a launcher, and the key that a question must contain."""

    address: str
    port: int
    key: str


@dataclass
class _Peer:
    endpoint: PeerEndpoint
    socket_address: tuple[Any, ...]
    number: str = ""
    silent_s: float = 0.0
    has_answered: bool = False
    is_good: bool = False


class Peers:
    """Network connections from this launcher to the other launchers.

    Args:
        lease: Renewed when the others confirm that this node is alive; ended when one considers this node
            lost.

    Attributes:
        lost_nodes: Nodes that this node considers lost; the answers to their questions say so.
    """

    def __init__(self, node: Node, lease: Lease) -> None:
        self.node, self.lease = node, lease
        self.lost_nodes: set[int] = set()
        bind_to = node.bind_to
        family = socket.AF_INET6 if ":" in bind_to else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((bind_to, 0))
        self._socket.settimeout(ASK_EVERY_S / 4)
        port = self._socket.getsockname()[1]
        self.endpoint = PeerEndpoint(address=node.address, port=port, key=secrets.token_hex(16))
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def begin(self) -> None:
        """Start asking and answering, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop asking and answering."""
        self._is_over.set()

    def add_endpoints(self, endpoints: Mapping[int, PeerEndpoint]) -> None:
        """Record the endpoints of other launchers."""
        for node, endpoint in endpoints.items():
            peer = self._peers.get(node)
            if node == self.node.rank or (peer is not None and peer.endpoint == endpoint):
                continue
            with contextlib.suppress(OSError):  # a name that does not resolve now is tried again in a second
                addresses = socket.getaddrinfo(
                    endpoint.address, endpoint.port, self._socket.family, socket.SOCK_DGRAM
                )
                with self._lock:
                    self._peers[node] = _Peer(endpoint=endpoint, socket_address=addresses[0][4])

    def endpoints(self) -> dict[int, PeerEndpoint]:
        """Return the endpoints of all known launchers, including this one."""
        with self._lock:
            return {self.node.rank: self.endpoint} | {
                node: peer.endpoint for node, peer in self._peers.items()
            }

    def unreachable(self) -> dict[int, float]:
        """Return the nodes that have stopped answering, each with the seconds since its last answer."""
        with self._lock:
            return {
                node: round(peer.silent_s, 1)
                for node, peer in self._peers.items()
                if peer.has_answered and peer.silent_s >= UNREACHABLE_AFTER_S
            }

    def is_confirmed_alive(self, num_nodes: int) -> bool:
        """True if the nodes on which this node depends confirm that it is alive.

        Node 0 depends on all other nodes, every other node on node 0.
        """
        required_nodes = range(1, num_nodes) if self.node.is_head else (0,)
        with self._lock:
            return len(required_nodes) > 0 and all(
                (peer := self._peers.get(node)) is not None
                and peer.is_good
                and peer.silent_s < UNREACHABLE_AFTER_S
                for node in required_nodes
            )

    def _run(self) -> None:
        requested_at = float("-inf")
        checked_at = time.monotonic()
        while not self._is_over.is_set():
            now = time.monotonic()
            elapsed_s, checked_at = hang_watch.counted_s(now - checked_at), now
            with self._lock:
                for peer in self._peers.values():
                    peer.silent_s += elapsed_s
            if now - requested_at >= ASK_EVERY_S:
                requested_at = now
                self._ask_all()
                if self.is_confirmed_alive(self.node.num_nodes):
                    self.lease.renew()
            try:
                data, sender = self._socket.recvfrom(MAX_BYTES)
            except OSError:  # no data, or the network is down
                self._is_over.wait(0.01)
                continue
            self._handle_datagram(data, sender)
        self._socket.close()

    def _ask_all(self) -> None:
        with self._lock:
            peers = list(self._peers.items())
        for _, peer in peers:
            peer.number = peer.number or secrets.token_hex(8)
            question = {"key": peer.endpoint.key, "from": self.node.rank, "number": peer.number}
            self._send(question, peer.socket_address)

    def _handle_datagram(self, data: bytes, sender: Any) -> None:
        try:
            message = parse_json(data)
        except ValueError:
            return
        if not isinstance(message, dict) or not isinstance(message.get("from"), int):
            return
        node, number = message["from"], message.get("number")
        if "key" in message:
            if isinstance(number, str) and self._is_key_valid(message["key"]):
                answer = {"from": self.node.rank, "number": number, "standing": self._standing(node)}
                self._send(answer, sender)
            return
        with self._lock:
            peer = self._peers.get(node)
            if peer is None or not peer.number or number != peer.number:
                return
            peer.number, peer.silent_s, peer.has_answered = "", 0.0, True
            peer.is_good = message.get("standing") == "good"
        if message.get("standing") == "given up":
            self.lease.end_now()

    def _standing(self, node: int) -> str:
        """Return whether this node considers another node alive. "unknown": this node itself may be
        disconnected.
        """
        if node in self.lost_nodes:
            return "given up"
        return "good" if self.lease.is_fresh else "unknown"

    def _is_key_valid(self, key: Any) -> bool:
        """Compare keys as bytes, because `compare_digest` raises an error for non-ASCII text."""
        key_bytes = str(key).encode("utf-8", "replace")
        return secrets.compare_digest(key_bytes, self.endpoint.key.encode())

    def _send(self, values: Mapping[str, Any], target: Any) -> None:
        with contextlib.suppress(OSError):  # if the network is down, the answer will be missing
            self._socket.sendto(json.dumps(values).encode(), target)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of the nodes that train a run together.

    Attributes:
        rank: Number of the node, from 0. Node 0 is the rendezvous.
        num_nodes: Number of nodes.
        head: Name or address of node 0.
        port: Port on node 0 for the store of torchrun and its ranks.
    """

    rank: int
    num_nodes: int
    head: str
    port: int

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    def ranks(self, config: Config) -> range:
        """Return the global ranks on this node."""
        return range(self.rank * config.nproc_per_node, (self.rank + 1) * config.nproc_per_node)

    def rendezvous_arguments(self, num_ranks: int) -> list[str]:
        """Return torchrun's arguments for the rendezvous.

        Args:
            num_ranks: Per node.
        """
        return [
            *("--nnodes", str(self.num_nodes), "--node-rank", str(self.rank)),
            *("--master-addr", self.head, "--master-port", str(self.port)),
            *("--nproc-per-node", str(num_ranks)),
        ]

    def script_environment(self) -> Mapping[str, str]:
        """Return network variables for a user's script, which creates its own process groups.

        By default gloo uses the address of this machine's host name, which on Debian is a loopback address.
        """
        interface = "lo" if self.num_nodes == 1 else interface_towards(self.head)
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return {} if interface is None else {name: os.environ.get(name, interface) for name in names}

    @property
    def address(self) -> str:
        """Address at which the other nodes reach this node; for node 0 its name, which all nodes use."""
        return self.head if self.is_head else local_address(self.head) or ""

    @property
    def bind_to(self) -> str:
        """Address to which this node's socket for the other launchers is bound.

        All interfaces if its own name resolves to loopback: the interface to other nodes is then unknown.
        """
        address = local_address(self.head)
        return "0.0.0.0" if address is None or is_loopback(address) else address  # noqa: S104

    def environment(self) -> Mapping[str, str]:
        """Return variables for torchrun with the address at which other nodes reach this node.

        A host's own name often resolves to 127.0.1.1, which no other node can reach.

        Raises:
            OSError: If there is no route to the head.
        """
        if (address := local_address(self.head)) is None:
            raise OSError(f"this node cannot reach {self.head}, the address of the rendezvous")
        return {"PET_LOCAL_ADDR": address}
