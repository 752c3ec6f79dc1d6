"""Child processes of the page or a run do not inherit secrets that they do not need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainers.machine import environment

SECRETS = {
    "DDP_NOTIFY_URLS": "json://x",
    "HF_TOKEN": "x",
    "GITHUBTOKEN": "x",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "WANDB_API_KEY": "x",
    "PGPASSWORD": "x",
    "DB_PASS": "x",
    "GITLAB_PAT": "x",
    "SLACK_WEBHOOK": "x",
    "SSH_AUTH_SOCK": "/run/agent",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/a/key.json",
    "DATABASE_URL": "postgres://somebody:secret@host/base",
    "HTTPS_PROXY": "http://somebody:secret@proxy:8080",
    "PIP_INDEX_URL": "https://token@host/simple",
}
PLAIN = {
    "PATH": "/usr/bin",
    "HOME": "/home/a",
    "PWD": "/home/a",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "TRAINERS_SHARE_ONE_GPU": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HOME": "/cache",
    "NCCL_SOCKET_IFNAME": "eth0",
    "KEYBOARD": "de",
    "http_proxy": "http://proxy:8080",
    "TRAINERS_CACHE": "/cache/a@b",
}


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(environment.os.environ):
        monkeypatch.delenv(name)
    for name, value in (SECRETS | PLAIN).items():
        monkeypatch.setenv(name, value)


def handed_on(*arguments: Any, **options: Any) -> dict[str, str]:
    """Return the environment of a child, without pytest's variables."""
    found = environment.for_a_child(*arguments, **options)
    return {name: value for name, value in found.items() if not name.startswith("PYTEST")}


def test_a_child_gets_all_but_secrets_and_what_notifying_takes() -> None:
    assert handed_on({"RANK": "1", "SOME_TOKEN": "meant"}) == PLAIN | {"RANK": "1", "SOME_TOKEN": "meant"}
    found = handed_on(keep=environment.FOR_NOTIFYING)
    assert found.keys() - PLAIN.keys() == {"DDP_NOTIFY_URLS", "HTTPS_PROXY"}
    program = [sys.executable, "-c", "import os; print('\\n'.join(os.environ))"]
    said = subprocess.run(program, env=environment.for_a_child(), capture_output=True, text=True, check=True)
    assert not SECRETS.keys() & set(said.stdout.split())


STARTS = {f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")}


@pytest.mark.slow
def test_every_place_that_starts_a_process_says_what_environment_it_gets(repository: Path) -> None:
    """A call without an explicit environment would pass on everything."""
    starts, silent = 0, []
    for path in [*(repository / "ddp_gui").rglob("*.py"), *(repository / "trainers").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in STARTS):
                continue
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            starts += 1
            if "environment.for_a_child(" not in given.get("env", ""):
                silent.append(f"{path.relative_to(repository)}:{node.lineno}")
    assert starts >= 8 and silent == []
