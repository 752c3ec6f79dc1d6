"""Hosts that are network namespaces: they know each other, and nothing of them outlives their network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cluster.network import network
from tests.cluster.slurm_cluster import what_is_missing

END_S = 10.0


def test_what_still_runs_on_a_host_is_killed_with_it(tmp_path: Path) -> None:
    if missing := what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    before = socket.if_nameindex()
    with network(tmp_path, ("node1", "node2")) as made:
        assert socket.if_nameindex() == before, "browsers would break off what they load"
        first, second = made.hosts
        answer = subprocess.run(
            second.inside(["sh", "-c", "hostname; getent hosts node1"]),
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.split() == ["node2", first.address, "node1"]
        # As slurmstepd does while its controller is gone.
        stubborn = ["sh", "-c", "trap '' TERM; echo up; sleep 1000 & wait"]
        left = subprocess.Popen(first.inside(stubborn), stdout=subprocess.PIPE)
        assert left.stdout is not None and left.stdout.readline() == b"up\n"
    assert left.wait(END_S) == -signal.SIGKILL
    left.stdout.close()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"ddp{os.getpid()}-" not in listed and socket.if_nameindex() == before
