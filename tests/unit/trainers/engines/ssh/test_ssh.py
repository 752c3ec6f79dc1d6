"""Tests of hosts in a site file, scripts for their shells, cached answers, and finding processes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import wait_until
from trainers.contract import events, rundir
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.engines.site_file import SiteError
from trainers.engines.ssh import client, engine, lost_hosts, reap, scripts, site
from trainers.engines.ssh.client import Ssh, SshError, UnreachableError
from trainers.engines.ssh.hosts import Hosts, SshStart
from trainers.engines.ssh.lost_hosts import LostHosts
from trainers.engines.ssh.site import SshHost
from trainers.engines.ssh.unshared import RemoteCopy

REPOSITORY = Path(__file__).resolve().parents[5]
SOON_S = 60.0


def test_a_host_that_could_not_write_the_end_of_a_lost_run_lets_it_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rundir.create(tmp_path, Config())
    start = SshStart(tag="t", hosts=("pc1", "pc2"))
    run.write_status(Status(state="running", engine="ssh", handle=start.handle))
    NodesFolder(run, start.tag).make()
    subject = LostHosts(None, None, None)  # type: ignore[arg-type]
    write_status, written = RunDirectory.write_status, []

    def refuse_once(run: RunDirectory, status: Status) -> None:
        written.append(status)
        if len(written) == 1:
            raise OSError(errno.EIO, "Input/output error")
        write_status(run, status)

    monkeypatch.setattr(RunDirectory, "write_status", refuse_once)
    with pytest.raises(OSError, match="Input/output error"):
        subject._conclude(run, start)
    subject._conclude(run, start)
    recorded = status_file.read(run.status)
    assert recorded is not None and recorded.state == "failed"
    kinds = [event["kind"] for event in events.read_all(run.events)]
    assert kinds == ["error", "state"], "it is said once"
    assert not NodesFolder(run, start.tag).create_once("taken-over", {}), "it stays taken over"


def test_each_host_of_an_undone_start_is_reaped_as_soon_as_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pc1 answers at once but fails once; pc2 answers later."""
    monkeypatch.setattr(lost_hosts, "POLL_S", 0.0)
    reaped: list[set[str]] = []
    failing = [{"pc1", "pc2"}, {"pc2"}, set[str]()]

    class Answers:
        def has_start(self, name: str, tag: str) -> bool | None:
            return name == "pc1" or (True if len(reaped) == 2 else None)

    def reap(start: SshStart) -> dict[str, str]:
        reaped.append(failing[len(reaped)])
        return dict.fromkeys(reaped[-1], "no answer")

    subject = LostHosts(Answers(), None, reap)  # type: ignore[arg-type]
    subject._reap_when_back(SshStart(tag="t", hosts=("pc1", "pc2")), ["pc1", "pc2"])
    assert reaped == failing


def test_a_file_that_the_disk_did_not_take_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = NodesFolder(rundir.create(tmp_path, Config()), "t")
    folder.make()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", refuse)
        with pytest.raises(OSError, match="No space"):
            folder.create_once("taken-over", {})
    assert folder.create_once("taken-over", {})


def site_of(folder: Path, text: str) -> site.SshSite:
    file = folder / "site.toml"
    file.write_text(text)
    return site.read(file)


def test_the_examples_of_the_docs_are_read(tmp_path: Path) -> None:
    example, unshared = re.findall(r"```toml\n(.*?)```", (REPOSITORY / "docs/ssh.md").read_text(), re.DOTALL)
    read = site_of(tmp_path, example)
    assert [host.name for host in read.hosts] == ["pc1", "pc2"]
    assert read.hosts[1].address == "10.0.0.2" and read.hosts[0].remote_python == sys.executable
    assert read.shared
    read = site_of(tmp_path, unshared)
    assert not read.shared and read.folder == "/home/ann/ddp-web" and len(read.hosts) == 2


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "lacks ssh.hosts"),
        ('[ssh]\nhosts = ["a", "b"]\nfolder = "/home/x"', "folder is allowed only with shared = false"),
        (
            '[ssh]\nhosts = ["a"]\nshared = false',
            "folder is '', but allowed with shared = false is: an absolute path",
        ),
        (
            '[ssh]\nhosts = [{ name = "a", project = "/x" }]\nshared = false\nfolder = "/home/x"',
            "project of a has no effect",
        ),
        ('[ssh]\nhosts = [{ name = "a" }]', r"hosts are 1; allowed: 2 to 8"),
        ('[ssh]\nhosts = [{ name = "-oProxyCommand=x" }, { name = "b" }]', "name is '-oProxyCommand=x'"),
        ('[ssh]\nhosts = [{ name = "a", project = "~/x" }, { name = "b" }]', "project of a is '~/x'"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_words(tmp_path: Path, said: str, words: str) -> None:
    with pytest.raises(SiteError, match=words):
        site_of(tmp_path, said)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
def test_whatever_a_value_is_a_script_gives_it_on_as_it_is(value: str) -> None:
    host = SshHost(name="pc1", python=sys.executable, project="/")
    script = scripts.start_script(host, Path("/runs/x-1"), "tag", 0, ["-c", value], {"MORE": value})
    shown = script.partition("setsid ")[2].partition(" </dev/null")[0]
    exported = next(line for line in script.split("export ") if line.startswith("MORE=")).rstrip("\n")
    out = subprocess.run(
        ["sh"],
        input=f"export {exported}\nprintf '%s\\0' \"$MORE\" {shown}".encode(),
        capture_output=True,
        check=True,
    ).stdout
    assert out.split(b"\0")[:-1] == [value.encode(), sys.executable.encode(), b"-c", value.encode()]


def test_what_a_host_has_is_read() -> None:
    said = "cores 8\nmemory_kib 1024\ngpu 81559, NVIDIA H100, 80GB\ngpu [N/A], broken\n"
    read = scripts.read_capacity(said)
    assert (read.num_cores, read.memory_bytes) == (8, 2**20)
    assert [(gpu.name, gpu.memory_bytes) for gpu in read.gpus] == [("NVIDIA H100, 80GB", 81559 * 2**20)]
    for wrong in ("", "cores x\nmemory_kib 1", "cores 4\n"):
        with pytest.raises(ValueError, match="reports invalid resources"):
            scripts.read_capacity(wrong)


def test_a_host_says_what_it_has_and_trains_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    said = [
        subprocess.run(["sh"], input=text, env=environment, capture_output=True, text=True, check=True).stdout
        for text in (scripts.CAPACITY, scripts.state_script())
    ]
    assert scripts.read_capacity(said[0]).num_cores >= 1 and said[1] == ""


def test_no_answer_is_told_from_a_failure(tmp_path: Path) -> None:
    ssh = Ssh(variables={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    program, pc1 = tmp_path / "ssh", SshHost(name="pc1")
    for script, limit_s, kind, words in (
        ("echo refused >&2; exit 255", 60.0, UnreachableError, "pc1 cannot be reached: refused"),
        ("echo wrong >&2; exit 1", 60.0, SshError, "^pc1: wrong$"),
        ("exec sleep 600", 0.4, UnreachableError, "pc1 did not answer within 0 s"),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with pytest.raises(kind, match=words) as caught:
            ssh.ask(pc1, "true", limit_s=limit_s)
        assert type(caught.value) is kind
    with pytest.raises(SshError, match="install OpenSSH"):
        Ssh(variables={"PATH": str(tmp_path / "empty")}).ask(pc1, "true")
    assert client.CONNECT_WITHIN_S < client.ANSWER_WITHIN_S


def test_a_start_that_cannot_be_undone_names_the_silent_host_and_ends_its_processes_later(
    tmp_path: Path,
) -> None:
    """pc1 refuses the start; the connection to pc2 breaks after its launcher has started."""
    cut, reaped = tmp_path / "cut", tmp_path / "reaped"
    program = tmp_path / "ssh"
    program.write_text(f"""#!/bin/sh
script=$(cat)
case "$* $script" in
  *"pc1 sh "*setsid*) echo "its disk is full" >&2; exit 1;;
  *"pc2 sh "*setsid*) touch {cut}; echo "1 1";;
  *"pc2 sh "*) [ ! -e {cut} ] || exit 255;;
esac
case "$* $script" in *"pc2 sh "*engines.ssh.reap*) touch {reaped};; esac
""")
    program.chmod(0o755)
    ssh = Ssh(variables={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    hosts = [SshHost(name=name, address="10.0.0.1") for name in ("pc1", "pc2")]
    subject = engine.SshEngine(tmp_path / "site.toml", Hosts(hosts, ssh))
    run = rundir.create(tmp_path / "runs", Config(num_nodes=2))
    with pytest.raises(SshError) as caught:
        subject.start(run)
    assert str(caught.value) == (
        "pc1: its disk is full; pc2 cannot be reached: no answer: "
        "the page keeps trying to kill the processes there"
    )
    assert not reaped.exists()
    cut.unlink()
    wait_until("the end of the processes on pc2", reaped.exists, SOON_S)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_stop_while_the_launcher_starts_is_not_lost(tmp_path: Path, is_cut: bool) -> None:
    """If the connection breaks before the launcher is ended, the run lives until it has the command."""
    cut, told = tmp_path / "cut", tmp_path / "told"
    programs = {
        "ssh": f"cat >/dev/null; [ ! -e {cut} ] || exit 255; [ -e {told} ] || echo t",
        "rsync": f'case "$*" in *commands.jsonl*) touch {told};; esac',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    ssh = Ssh(variables={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    run, start = rundir.create(tmp_path / "runs", Config()), SshStart(tag="t", hosts=("pc1",), run_dir="/x")
    run.write_status(Status(state="queued", engine="ssh", handle=start.handle))
    copy = RemoteCopy(ssh, run, start, SshHost(name="pc1", project="/code"))
    is_starting, goes_on, has_ended = (threading.Event() for _ in range(3))

    def start_there() -> None:
        is_starting.set()
        goes_on.wait(SOON_S)

    def end_there() -> list[str]:
        has_ended.set()
        if is_cut:
            cut.touch()
        return ["pc1 cannot be reached"] * is_cut

    copy.send("/data", start_there, end_there)
    assert is_starting.wait(SOON_S) and copy.progress == "Starting on pc1 …"
    assert copy.is_alive and copy.cancel()
    goes_on.set()
    assert copy.is_sent.wait(SOON_S) and has_ended.is_set(), "what was started there is ended"
    recorded = status_file.read(run.status)
    assert recorded is not None and recorded.state == ("starting" if is_cut else "stopped")
    if is_cut:
        wait_until("its silence", lambda: copy.is_alive is None, SOON_S)
        assert not copy.cancel(), "it was started"
        assert '"name":"stop"' in run.commands.read_text().replace(" ", "") and not told.exists()
        cut.unlink()
        assert copy.is_back.wait(SOON_S) and told.exists(), "the command is delivered"
    assert copy.is_alive is False


@pytest.fixture
def tagged() -> Iterator[subprocess.Popen[bytes]]:
    words = ["sh", "-c", "env -u DDP_SSH_START sleep 100 & echo up; wait"]
    process = subprocess.Popen(words, env={**os.environ, scripts.TAG: "t:0"}, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_what_has_a_tag_is_killed_with_all_below_it(
    tagged: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reap.find_processes("t:1") == [] and len(found := reap.find_processes("t:0")) == 2
    monkeypatch.setattr(sys, "argv", ["reap", "t:0"])
    reap.main()
    assert capsys.readouterr().out == "2\n" and tagged.wait(10) == -9
    assert not any(reap._is_alive(each) for each in found)


@pytest.mark.parametrize(
    ("bytes_per_s", "latency_s", "words"), [(11e6, 3e-4, "100 Mbit/s"), (110e6, 2e-4, ""), (1e9, 1e-4, "")]
)
def test_a_slow_link_is_named_and_what_to_do_about_it(
    bytes_per_s: float, latency_s: float, words: str
) -> None:
    first = {"backend": "gloo", "bus_bytes_per_s": 1e6, "time_s": latency_s}
    last = {"backend": "gloo", "bus_bytes_per_s": bytes_per_s, "time_s": 1.0}
    said = f"{json.dumps(first)}\nnoise\n{json.dumps(last)}\n"
    report = engine.read_links(("a", "b"), {"a": said, "b": ""})
    assert (report.bytes_per_s, report.latency_s) == (bytes_per_s, latency_s)
    assert words in report.problem and bool(words) == bool(report.problem)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("", "", "a said nothing"),
        ('{"error": "a wrong sum", "rank": 0}\nnoise\nended with 1', "", "Not measured: a: a wrong sum."),
        ("noise\nended with 124", "ended with 2", "a did not finish within 80 s; b: ended with 2. If the"),
        ("ended with 1", UnreachableError("b cannot be reached"), "b cannot be reached. If the hosts cannot"),
    ],
)
def test_what_was_not_measured_says_why(first: str, second: str | SshError, words: str) -> None:
    report = engine.read_links(("a", "b"), {"a": first, "b": second})
    assert report.bytes_per_s is None and words in report.problem
