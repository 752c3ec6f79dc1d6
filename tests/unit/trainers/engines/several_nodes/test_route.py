"""Tests of the network interface that ranks on several machines use."""

from __future__ import annotations

import os

import pytest

from trainers.engines.several_nodes import peers
from trainers.machine import host
from trainers.parallel import process_group

LOOPBACK, OUT = "127.0.0.1", "10.1.2.3"


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with two interfaces; maps each destination to the source address."""
    known = {LOOPBACK: LOOPBACK, "here": LOOPBACK, OUT: OUT, "there": OUT, "192.0.2.1": OUT}
    monkeypatch.setattr(peers, "local_address", known.get)
    monkeypatch.setattr(host, "interfaces", lambda: {"lo": {LOOPBACK, "::1"}, "eth1": {OUT}})
    return known


def test_interface_is_that_of_the_route_unless_one_is_named_or_there_is_no_way_out(
    routes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"GLOO_SOCKET_IFNAME": "ib0"}
    monkeypatch.setattr(os, "environ", environment)
    process_group.use_interface_towards("there")
    assert environment == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "eth1"}
    del routes["192.0.2.1"]
    assert peers.interface_towards("here") is None
