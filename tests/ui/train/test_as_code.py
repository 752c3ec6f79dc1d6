"""The form as a script: it follows the settings and marks the lines that a setting has changed."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.ui.conftest import Watched, assert_usable
from tests.ui.run.test_elsewhere import LOOKS
from tools.page_driver import Server


def open_script(watched: Watched, server: Server) -> Locator:
    page = watched.page
    page.goto(server.address)
    expect(page.locator("#equation")).to_contain_text("global batch")
    watched.wait_until_answered()
    page.locator("#fold-code > .label-wrap").click()
    code = page.locator("#ddp-form-code")
    expect(code.locator(".ddp-code-line").first).to_be_visible()
    return code


def test_a_changed_setting_marks_the_lines_that_it_changes(server: Server, watched: Watched) -> None:
    page = watched.page
    code = open_script(watched, server)
    changed = code.locator(".ddp-code-changed")
    expect(changed).to_have_count(0)
    page.get_by_label("Batch per rank").fill("50")
    expect(changed).to_have_count(1)
    expect(changed).to_contain_text("BATCH_SIZE = 50")
    expect(changed).to_be_in_viewport()
    expect(code.get_by_role("status")).to_contain_text("Changed: 1 line")
    page.get_by_label("Batch per rank").fill("40")
    expect(changed).to_contain_text("BATCH_SIZE = 40")
    assert watched.complaints == [] and watched.foreign_requests == []


def test_an_invalid_setting_is_said_in_place_of_the_script(server: Server, watched: Watched) -> None:
    page = watched.page
    code = open_script(watched, server)
    page.get_by_label("Batch per rank").fill("0")
    expect(code.get_by_role("status")).to_contain_text("cannot be started")
    expect(code.locator(".ddp-code-lines")).to_be_hidden()
    page.get_by_label("Batch per rank").fill("32")
    expect(code.locator(".ddp-code-line").filter(has_text="BATCH_SIZE = 32")).to_be_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_keeps_anybody_out_and_only_the_code_scrolls_sideways(
    server: Server, watched: Watched, look: str
) -> None:
    width, is_dark = LOOKS[look]
    page = watched.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")
    open_script(watched, server)
    assert_usable(page, "#ddp-form-code")
