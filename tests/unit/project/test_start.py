"""The start: messages before the page is loaded, and the page that shows its progress."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import app
from rankscope import first_start, menu
from rankscope.first_start import InstallProgress
from tests.harness import REPOSITORY, wait_until
from tests.other_user import UID, needs_a_second_user, shared_folder


def said_to_another_user(call: Callable[[], object]) -> str:
    """Return the message of the ValueError that another user gets; empty without an error."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
        try:
            call()
        except ValueError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


@needs_a_second_user
@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ("project/runs", "runs"),
        ("others", "runs"),
        ("project/own", "uploads, next to the folder of the runs,"),
    ],
)
def test_a_folder_of_runs_that_cannot_be_used_names_the_option(runs: str, what: str) -> None:
    """An administrator may install the project in a folder that its users cannot write to."""
    with shared_folder() as folder:
        for name in ("project", "others", "home", "project/own"):
            (folder / name).mkdir()
            (folder / name).chmod(0o755)
        for name in ("home", "project/own"):
            os.chown(folder / name, UID, UID)
        said = said_to_another_user(lambda: app.make_folders(folder / runs))
        assert said.startswith(f"the folder of the {what} cannot be used (Permission denied: {folder}")
        assert "--runs-dir" in said and "that every node sees" in said
        assert said_to_another_user(lambda: app.make_folders(folder / "home" / "runs")) == ""


def test_a_folder_of_runs_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ValueError, match=r"cannot be used .*--runs-dir"):
        app.make_folders(tmp_path / "runs")


def test_plugins_that_another_user_could_change_are_refused(tmp_path: Path) -> None:
    """Their code runs in every job; the default folder may lie in one that everybody can write to."""
    file = tmp_path / "plugins" / "models" / "mine.py"
    file.parent.mkdir(parents=True)
    file.touch(0o644)
    words = [f"--runs-dir={tmp_path / 'runs'}"]
    assert app.checked_options(app.parse_options(words)).plugins == tmp_path / "plugins"
    file.chmod(0o646)
    with pytest.raises(ValueError, match=r"--plugins: every user of this machine can change .*mine\.py"):
        app.checked_options(app.parse_options(words))
    with pytest.raises(ValueError, match="--plugins: there is no folder"):
        app.checked_options(app.parse_options([*words, f"--plugins={tmp_path / 'none'}"]))
    file.chmod(0o644)
    if os.geteuid() == 0:
        # A link of another user would choose the code.
        link = tmp_path / "shared" / "plugins"
        link.parent.mkdir()
        link.symlink_to(tmp_path / "plugins")
        os.chown(link, UID, UID, follow_symlinks=False)
        with pytest.raises(ValueError, match=r"--plugins: .*shared/plugins is not .* it belongs to"):
            app.checked_options(app.parse_options([f"--runs-dir={link.with_name('runs')}"]))
        os.chown(file, UID, UID)
        with pytest.raises(ValueError, match=r"--plugins: .*mine\.py is not .* it belongs to"):
            app.checked_options(app.parse_options(words))


OUTPUT = """\
Checking the environment in .venv …
torch 2.13.0: the CPU build, because no NVIDIA GPU was found. For another one: --torch-build (README).
Download: 192 MB from download.pytorch.org, then about 110 MB of other packages by pip.
torch: 45 of 192 MB, 3.1 MB/s, 47 s left
torch: 192 of 192 MB
  Downloading gradio-6.31.0-py3-none-any.whl (24.7 MB)
  Downloading orjson-3.13.0-cp311-cp311-manylinux_2_17_x86_64.whl (300 kB)
Installing collected packages: torch, gradio
Importing Gradio, and listing models, data sets and GPUs …
The page is at http://127.0.0.1:7861  (runs are stored in runs; Ctrl-C ends the page, not the runs)
"""
ANSWER_TIMEOUT_S = 60.0


def test_what_is_downloaded_is_read_from_the_output() -> None:
    progress, seen = InstallProgress(), []
    for line in OUTPUT.splitlines(keepends=True):
        progress.add(line)
        state = progress.to_json()
        seen.append((state["step"], state["loaded_mb"], state["total_mb"], state["state"]))
    assert seen == [
        ("Checking the environment in .venv", 0, None, "working"),
        ("Checking the environment in .venv", 0, None, "working"),
        ("Checking the environment in .venv", 0, 302, "working"),
        ("Downloading torch", 45, 302, "working"),
        ("Downloading torch", 192, 302, "working"),
        ("Downloading gradio", 217, 302, "working"),
        ("Downloading orjson", 217, 302, "working"),
        ("Installing the downloaded packages", 302, 302, "working"),
        ("Importing Gradio, and listing models, data sets and GPUs", 302, 302, "working"),
        ("Importing Gradio, and listing models, data sets and GPUs", 302, 302, "ready"),
    ]
    assert progress.to_json()["address"] == "http://127.0.0.1:7861"
    assert progress.to_json()["announced"] == OUTPUT.splitlines()[2]


def test_only_this_machine_s_own_name_gets_the_output() -> None:
    progress = InstallProgress()
    progress.add("a line of the output")
    server = first_start.serve(progress)
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/progress", timeout=ANSWER_TIMEOUT_S) as answer:
            assert json.load(answer)["lines"] == ["a line of the output"]
        client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=ANSWER_TIMEOUT_S)
        client.request("GET", "/progress", headers={"Host": f"attacker.example:{server.server_port}"})
        assert client.getresponse().status == 403
        client.close()
    finally:
        server.shutdown()
        server.server_close()


def test_closing_the_window_ends_the_page(tmp_path: Path) -> None:
    """A terminal that is closed sends SIGHUP."""
    page = "import time; print('The page is at http://127.0.0.1:1', flush=True); time.sleep(600)"
    program = (
        "import sys; from rankscope import first_start; first_start.READY_FOR_S = 0.0; "
        "first_start.is_open = lambda port: False; "
        f"sys.exit(first_start.start([sys.executable, '-c', {page!r}], opens_browser=False))"
    )
    output = tmp_path / "output"
    with output.open("w") as file, subprocess.Popen([sys.executable, "-c", program], stdout=file) as process:
        wait_until("the page", lambda: "Close this window" in output.read_text(), ANSWER_TIMEOUT_S)
        process.send_signal(signal.SIGHUP)
        assert process.wait(ANSWER_TIMEOUT_S) != 0


def test_the_desktop_entry_starts_the_script_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "Ann's files"
    folder.mkdir()
    (folder / "start.sh").write_text('#!/bin/sh\necho "started: $0"\n')
    (folder / "start.sh").chmod(0o755)
    text = (REPOSITORY / "deploy" / "desktop" / "Rankscope.desktop").read_text()
    (value,) = re.findall("^Exec=(.*)", text, re.MULTILINE)
    assert "'" not in value, "the specification reserves it"
    # The value is a string with escapes, whose words are quoted as in a shell.
    line = value.replace(r"\\", "\\").replace("%k", shlex.quote(str(folder / "Rankscope.desktop")))
    said = subprocess.run(["sh", "-c", line], cwd="/", capture_output=True, text=True, check=True).stdout
    assert said == f"started: {folder}/start.sh\n"
    entry = menu.add(tmp_path, ['/home/ann/my "python"%', "-m", "rankscope"])
    assert r'Exec="/home/ann/my \\"python\\"%%" "-m" "rankscope" start' in entry.read_text()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"home/.local/bin/rankscope": 'echo "installed: $*"'}, "installed: start --port 1"),
        ({"run.sh": "", "rankscope/first_start.py": "", "bin/python3": 'echo "checkout: $*"'}, "checkout: "),
        ({"run.sh": ""}, "Python 3.11 or newer is missing"),
        ({}, "Rankscope is not installed"),
    ],
)
def test_what_a_double_click_starts(files: dict[str, str], words: str, tmp_path: Path) -> None:
    desktop = tmp_path / "deploy" / "desktop"
    shutil.copytree(REPOSITORY / "deploy" / "desktop", desktop)
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "uname", "sh"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    for name, script in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    ended = subprocess.run(
        [desktop / "start.sh", "--port", "1"], env=environment, input="\n", capture_output=True, text=True
    )
    assert words in ended.stdout, ended
