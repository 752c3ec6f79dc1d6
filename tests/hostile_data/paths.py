"""Paths that are not regular files, are infinite, or contain cycles."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.hostile_data.attack import Attack, at

DEPTH = 1_500
MANY = 1_000_000


def attacks() -> list[Attack]:
    """Return the attacks by paths."""
    there = ("/dev/zero", "/dev/random", "/proc/kcore", "/proc/self/environ", "/proc/kmsg", "/proc", "/")
    return [
        Attack(name="path: nothing there", make=lambda folder: folder / "x" / "y.csv"),
        Attack(name="path: a pipe", make=_pipe),
        Attack(name="path: a pipe among images", make=_pipe_among_images),
        Attack(name="path: a socket", make=_socket),
        Attack(name="path: links in a circle", make=_circle),
        Attack(name="path: of 300 characters", make=lambda folder: folder / ("x" * 300)),
        Attack(name="path: folders 1,500 deep", make=_deep),
        Attack(name="path: a million files in a folder", make=_many_files),
        Attack(name="path: home of nobody", make=at("~no-such-user/data.csv")),
        Attack(name="path: like an option", make=at("--prepare")),
        *(Attack(name=f"path: {path}", make=at(path)) for path in there),
    ]


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.csv")
    return folder / "pipe.csv"


def _pipe_among_images(folder: Path) -> Path:
    (folder / "a").mkdir()
    os.mkfifo(folder / "a" / "pipe.png")
    return folder


def _socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
    return folder / "s"


def _circle(folder: Path) -> Path:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return folder / "a"


def _deep(folder: Path) -> Path:
    place = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=place)
        place, before = os.open("d", os.O_RDONLY, dir_fd=place), place
        os.close(before)
    os.close(place)
    return folder


def _many_files(folder: Path) -> Path:
    (folder / "a").mkdir()
    place = os.open(folder / "a", os.O_RDONLY)
    for number in range(MANY):
        os.close(os.open(f"{number}.png", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)
    return folder
