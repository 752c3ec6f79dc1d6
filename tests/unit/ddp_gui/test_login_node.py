"""Tests of `--ssh`: accepted options, access to the local port, and the end of the remote page."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import app as program
from ddp_gui import login_node
from ddp_gui.http import listening as listening_module
from ddp_gui.login_node import HOST, SocketForwarder

PATIENCE_S = 20.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ssh hpc", "add --engine slurm"),
        ("--ssh -oProxyCommand=x --engine slurm", "expected one argument"),
        ("--ssh= --engine slurm", "--ssh is ''; allowed: a host"),
        ("--ssh hpc --engine slurm --host 0.0.0.0", "--host cannot be combined with --ssh"),
        ("--ssh hpc --engine slurm --auth-file a.json", "--auth-file cannot be combined with --ssh"),
    ],
)
def test_what_a_login_node_cannot_do_is_said(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((ValueError, SystemExit)) as refused:
        program._login_node_options(program.parse_options(words.split()))
    assert said in str(refused.value) + capsys.readouterr().err


def test_whatever_a_folder_is_called_the_shell_there_takes_it_as_one_word(tmp_path: Path) -> None:
    folder = tmp_path / "it's; touch broken"
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    words = login_node._remote_command(str(folder), 7, ["--runs-dir", "a b'c"])
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == ["--runs-dir", "a b'c"] and "--until-silence" in done.stdout
    words = login_node._remote_command(str(tmp_path / "none"), 7, [])
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and "copy this project there" in done.stderr
    assert not (tmp_path / "broken").exists()


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a socket that answers each connection with the received text in capitals."""
    path = tmp_path / "page"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    while piece := connection.recv(4096):
                        connection.sendall(piece.upper())

        threading.Thread(target=answer, daemon=True).start()
        yield path
        listening.shutdown(socket.SHUT_RDWR)


def said_at(port: int, words: bytes) -> bytes:
    """Return the response at a local port: as many bytes as were sent, or those received before it closed."""
    found = b""
    with socket.create_connection((HOST, port), PATIENCE_S) as connection:
        try:
            connection.sendall(words)
            while len(found) < len(words) and (piece := connection.recv(4096)):
                found += piece
        except ConnectionError:
            return b""
    return found


def test_only_the_user_of_this_machine_comes_through(behind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forwarder = SocketForwarder(0, behind)
    forwarder.open()
    assert said_at(forwarder.port, b"hello") == b"", "no page answers yet"
    forwarder.is_page_ready.set()
    assert said_at(forwarder.port, b"hello" * 100_000) == b"HELLO" * 100_000
    asked: list[tuple[str, int]] = []

    def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
        asked.append(server)
        return False

    monkeypatch.setattr(listening_module, "is_own", is_own)
    assert said_at(forwarder.port, b"hello") == b"" and asked == [(HOST, forwarder.port)]


def test_the_page_there_ends_when_nothing_comes_any_more_or_all_is_over() -> None:
    for silent_for_s, is_closed in ((0.3, False), (PATIENCE_S * 5, True)):
        ended = threading.Event()
        reading, writing = os.pipe()
        login_node.end_without(reading, ended.set, silent_for_s)
        os.write(writing, login_node.BEAT)
        assert not ended.is_set()
        if is_closed:
            os.close(writing)
        assert ended.wait(PATIENCE_S)
        if not is_closed:
            os.close(writing)
        os.close(reading)
