"""The Open OnDemand app: ruby renders its templates, and the page is used through a proxy.

Open OnDemand itself is not available here. The test simulates the parts around the app: its bash helpers, the
order in which the files are sourced, and its proxy, which forwards the full path.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests import prefix_proxy
from tests.harness import wait_until
from tools import page_driver
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import REPOSITORY

APP = REPOSITORY / "deploy" / "ondemand"
UP_S = 90.0
FORM = {
    "runs_as": "local",
    "hours": "2",
    "num_cores": "4",
    "num_gpus": "0",
    "bc_queue": "",
    "bc_account": "",
}
# Form values are strings. Templates access them as methods, those in the job's folder through `context`.
RENDER = """\
require "erb"
require "json"
require "ostruct"
values = JSON.parse(STDIN.read)
context = OpenStruct.new(values)
def context.binding_of_it = binding
scope = context.binding_of_it
scope.local_variable_set(:context, context)
puts ERB.new(File.read(ARGV[0]), trim_mode: "-").result(scope)
"""
# Replaces Open OnDemand's own job script.
JOB = """\
set -eu
cd {session}
find_port() {{ echo {port}; }}
create_passwd() {{ head -c 256 /dev/urandom | base64 -w 0 | tr -dc 'a-zA-Z0-9' | head -c "$1"; }}
wait_until_port_used() {{
  for _ in $(seq "$2"); do (exec 3<>"/dev/tcp/${{1%:*}}/${{1#*:}}") 2>/dev/null && return; sleep 1; done
  return 1
}}
clean_up() {{ exit "$1"; }}
host=localhost
export host
source before.sh
bash script.sh >page.log 2>&1 &
echo $! >page.pid
source after.sh
connection='{{"host": "%s", "port": "%s", "password": "%s"}}'
(umask 077; printf "$connection" "$host" "$port" "$password" >connection.json)
wait
"""
SITE = """\
DDP_PROJECT={project}
DDP_PORTAL=portal.example.edu
DDP_PROXY_FROM=127.0.0.1
DDP_SITE=
DDP_RUNS={runs}
"""


def rendered(template: str, **values: Any) -> str:
    """Return one of the app's templates, rendered by ruby."""
    if (ruby := shutil.which("ruby")) is None:
        missing = "NOT RUN: ruby is not installed: apt-get install ruby"
        (pytest.fail if "CI" in os.environ else pytest.skip)(missing)
    done = subprocess.run(
        [ruby, "-e", RENDER, str(APP / template)],
        input=json.dumps(FORM | values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def text_of(path: Path, **values: Any) -> str:
    """Return a file of the job's folder, rendered if it is a template."""
    return rendered(f"template/{path.name}", **values) if path.suffix == ".erb" else path.read_text()


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session of the app, with a page started as in a job.

    Attributes:
        connection: Values for rendering the session's card.
        address: The page behind the proxy of the portal.
    """

    folder: Path
    runs_dir: Path
    connection: Mapping[str, str]
    address: str

    @property
    def card(self) -> str:
        """Return the card as part of a page; it opens the page in the same tab."""
        form = rendered("view.html.erb", **self.connection).replace(' target="_blank"', "")
        return f'<link rel="icon" href="data:,">{form}'


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    folder, runs_dir = tmp_path / "a session", tmp_path / "runs"
    folder.mkdir()
    for path in (APP / "template").iterdir():
        (folder / path.name.removesuffix(".erb")).write_text(text_of(path))
    (folder / "site.sh").write_text(SITE.format(project=REPOSITORY, runs=runs_dir))
    job = subprocess.Popen(
        ["bash", "-c", JOB.format(session=f"'{folder}'", port=page_driver.free_port())],
        start_new_session=True,
    )
    try:
        said = folder / "connection.json"
        wait_until("the page answering", lambda: said.exists() or job.poll() is not None, UP_S)
        assert said.exists(), (folder / "page.log").read_text()
        connection = json.loads(said.read_text())
        prefix = f"/node/{connection['host']}/{connection['port']}"
        with prefix_proxy.in_front_of(int(connection["port"]), prefix, keeps_prefix=True) as address:
            yield Session(folder=folder, runs_dir=runs_dir, connection=connection, address=address)
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        job.wait()


def open_by_card(page: Page, session: Session) -> None:
    """Press the button of a session's card on a page of the portal."""
    portal = urlsplit(session.address)._replace(path="/card").geturl()
    page.route(portal, lambda route: route.fulfill(body=session.card, content_type="text/html"))
    page.goto(portal)
    page.get_by_role("button", name="Open Rankscope").click()
    page.wait_for_url(f"{session.address}/")


def test_a_card_opens_its_page_behind_the_proxy(session: Session, page: Page) -> None:
    assert len(session.connection["password"]) == 32
    for name in ("accounts.json", "connection.json"):
        assert (session.folder / name).stat().st_mode & 0o077 == 0, name
    page.goto(f"{session.address}/")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()  # no card: login required
    open_by_card(page, session)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    expect(page.locator(".ddp-pill")).to_have_text("running")
    expect(page.locator(".ddp-ranks-list li")).to_have_count(2)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    run = RunDirectory(session.runs_dir / page.url.partition("?id=")[2])
    assert run.list_checkpoints()


def test_the_job_is_what_the_form_asks_for_and_a_value_stays_a_value() -> None:
    job = yaml.safe_load(rendered("submit.yml.erb"))
    assert job["batch_connect"]["template"] == "basic" and job["script"]["wall_time"] == 7200
    assert set(job["script"]) == {"wall_time", "native"}
    assert job["script"]["native"] == ["--nodes=1", "--ntasks=1", "--cpus-per-task=4"]
    odd = 'a"\n  native: ["--uid=0"]'
    job = yaml.safe_load(rendered("submit.yml.erb", bc_queue="gpu", bc_account=odd, num_gpus="2 --x"))
    assert (job["script"]["queue_name"], job["script"]["accounting_id"]) == ("gpu", odd)
    assert job["script"]["native"][-1] == "--gres=gpu:2"
    card = rendered("view.html.erb", host='x"><script>', port="80/../..", password='"><b>')
    assert "<script>" not in card
    assert "<b>" not in card
    assert 'action="/node/x&quot;' in card
    assert "/80/login" in card


def test_what_open_ondemand_reads_is_whole() -> None:
    form, manifest = (yaml.safe_load((APP / name).read_text()) for name in ("form.yml", "manifest.yml"))
    own = {name for name in form["form"] if not name.startswith("bc_")}
    assert own == set(form["attributes"]) and own | {"bc_queue", "bc_account"} == set(FORM)
    assert manifest["role"] == "batch_connect"
    for path in (APP / "template").iterdir():
        for runs_as in ("local", "slurm"):
            text = text_of(path, runs_as=runs_as)
            assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0, path
            assert ("--engine slurm" in text) == (path.name == "script.sh.erb" and runs_as == "slurm")
