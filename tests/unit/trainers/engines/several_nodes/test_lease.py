"""Tests of what ends a disconnected launcher: its lease, and the answers of its peers over the network."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.harness import create_run, wait_until
from tests.unit.trainers.engines.several_nodes.conftest import peers_of
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.peers import UNREACHABLE_AFTER_S, Lease, PeerEndpoint, Peers
from trainers.engines.several_nodes.reports import NodeReport, NodesFolder

SOON_S = 20.0


def test_a_lease_ends_its_launcher_when_nothing_renews_it_and_at_once_when_it_is_told() -> None:
    ended = threading.Event()
    lease = Lease(ended.set, length_s=1.5)
    lease.begin()
    for _ in range(12):  # for twice the length of the lease
        lease.renew()
        assert not ended.wait(0.25)
    assert ended.wait(SOON_S)
    told = threading.Event()
    other = Lease(told.set)
    other.begin()
    other.end_now()
    assert told.wait(SOON_S)


@pytest.fixture
def pair() -> list[Peers]:
    """Return two launchers that know each other's endpoints and confirm every node."""
    made = [peers_of(node) for node in (0, 1)]
    made[1].add_endpoints(made[0].endpoints())
    made[0].add_endpoints(made[1].endpoints())
    return made


def test_peers_that_answer_vouch_for_each_other_until_one_is_silent(pair: list[Peers]) -> None:
    for peers in pair:
        assert not peers.is_confirmed_alive(2), "nothing was heard yet"
        peers.begin()
    wait_until("answers", lambda: all(peers.is_confirmed_alive(2) for peers in pair), SOON_S)
    assert not pair[0].is_confirmed_alive(3), "node 2 has not answered"
    assert not pair[0].is_confirmed_alive(1), "without others nobody vouches"
    pair[1].close()
    wait_until("the silence", lambda: 1 in pair[0].unreachable(), SOON_S)
    assert not pair[0].is_confirmed_alive(2) and pair[0].unreachable()[1] >= UNREACHABLE_AFTER_S
    pair[0].close()


def test_a_question_without_the_key_gets_no_answer(pair: list[Peers]) -> None:
    true = pair[0].endpoint
    stranger = peers_of(1)
    stranger.add_endpoints({0: PeerEndpoint(address=true.address, port=true.port, key="0" * 32)})
    for peers in (pair[0], stranger):
        peers.begin()
    time.sleep(2.5)  # long enough for two requests and their responses
    assert not stranger.is_confirmed_alive(2) and stranger.unreachable() == {}
    for peers in (pair[0], stranger):
        peers.close()


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"[" * 500,
        b"[" * 200 + b"]" * 200,
        b"null",
        b'{"from": ' + b"9" * 400 + b', "key": "a", "number": "1"}',
        b'{"from": -9223372036854775808, "key": "a", "number": "1"}',
        '{"from": 1, "key": "ключ", "number": "1"}'.encode(),
        b'{"from": 1, "key": {"a": [1e999]}, "number": "1"}',
        b'{"from": 1, "number": {}, "standing": []}',
    ],
)
def test_no_datagram_ends_the_answers(datagram: bytes, pair: list[Peers]) -> None:
    there = (pair[0].endpoint.address, pair[0].endpoint.port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(datagram, there)  # it arrives before the first request
    for peers in pair:
        peers.begin()
    wait_until("answers", lambda: all(peers.is_confirmed_alive(2) for peers in pair), SOON_S)
    for peers in pair:
        peers.close()


def test_a_page_says_within_half_a_minute_that_the_first_node_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page uses its own clock; a node that has never reported is not silent."""
    run = create_run(tmp_path, num_nodes=1, nproc_per_node=1)
    folder = NodesFolder(run, "7-0")
    folder.make()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert restarts.silence_of_first_node(run) is None
    for count in range(1, 40):
        now += 1.0
        if count < 10:
            folder.write("0", asdict(NodeReport(count=count, host="node1", ranks={})))
        said = restarts.silence_of_first_node(run)
        assert (said is not None) is (count - 9 >= restarts.SILENT_AFTER_S), count
    assert said is not None and "Node 0 (node1) has not reported for 30 s" in said
