"""Bug reports contain no user names, home directories, host names or values of environment variables."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trainers.check_machine.report import PrivateValues, scrub

HOSTILE = PrivateValues(
    folders={"/srv/people/Ann.Lee (x)+": "HOME", "/srv/people/Ann.Lee (x)+/ddp": "PROJECT", "/": "ROOT"},
    names=["ubuntu", "ann.lee", "Ann Lee", "O'Hara [1]", "lab-pc-7", "al", "localhost", "nobody"],
    values=[
        "hunter2-7f3a9c",
        "2.13.0",
        "3.12.14",
        "2.13.0+cpu",
        "/opt/secret place/bin",
        "1",
        "cpu",
        "$(rm -rf)",
    ],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("File '/srv/people/Ann.Lee (x)+/ddp/trainers/x.py'", "File 'PROJECT/trainers/x.py'"),
        ("started by ANN.LEE on lab-pc-7", "started by NAME on NAME"),
        ("[lab-pc-7.cs.example.org]:29500", "[NAME]:29500"),
        ("of Ann Lee, O'Hara [1] and al", "of NAME, NAME and NAME"),
        ("A single rank does not communicate.", "A single rank does not communicate."),
        ("token=hunter2-7f3a9c;", "token=VALUE;"),
        ("PATH /opt/secret place/bin $(rm -rf)", "PATH VALUE VALUE"),
        ("rank 1 on cpu at localhost", "rank 1 on cpu at localhost"),
        ("/home/bob/x and /Users/Eve/y: /root/.cache", "HOME/x and HOME/y: HOME/.cache"),
        ("at 127.0.0.1, not 10.1.2.3 nor 0a:1b:2c:3d:4e:5f", "at 127.0.0.1, not ADDRESS nor ADDRESS"),
        ("write to eve@example.org", "write to MAIL"),
        ("GPU-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "GPU-NUMBER"),
        ("mac 0A:1B:2C:3D:4E:5F and 0A-1b-2C-3D-4E-5F", "mac ADDRESS and ADDRESS"),
        ("to [fe80::1%eth0]:29500, 2001:db8:0:1:2:3:4:5.", "to [ADDRESS]:29500, ADDRESS."),
        ("fd00::a1: refused; ::ffff:10.1.2.3", "ADDRESS: refused; ADDRESS"),
        (
            "at ::1, 12:34:56, c10::Error, a::b::run, GPU 0000:3b:00.0",
            "at ::1, 12:34:56, c10::Error, a::b::run, GPU 0000:3b:00.0",
        ),
        (
            "/export/home/bob/x, /data/home/eve/y, /nfs/homes/al2/z, /home2/al3",
            "HOME/x, HOME/y, HOME/z, HOME",
        ),
        ("~bob/x and ~/y, ~2 MB", "HOME/x and ~/y, ~2 MB"),
        ("torch 2.13.0+cpu, driver 580.65.06", "torch 2.13.0+cpu, driver 580.65.06"),
    ],
)
def test_a_hostile_name_home_or_value_is_taken_out(text: str, expected: str) -> None:
    assert scrub(text, HOSTILE) == expected


def test_this_machine_and_this_user_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_SECRET_OF_MINE", "correct horse battery")
    monkeypatch.setenv("HOME", str(tmp_path / "home of $pecial [user]"))
    runs_dir = tmp_path / "runs"
    known = PrivateValues.here(runs_dir)
    text = f"{runs_dir}/digits-1 {os.environ['HOME']}/x {socket.gethostname()} correct horse battery"
    assert scrub(text, known) == "RUNS/digits-1 HOME/x NAME VALUE"
