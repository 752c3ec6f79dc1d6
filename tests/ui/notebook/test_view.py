"""The live view without Jupyter: the widget's script, with a model that records what the view asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from ddp_gui.http import shell
from ddp_gui.notebook import live
from tests.ui.conftest import NewContext, Watched
from tests.unit.ddp_gui.notebook.test_live import Finished

NAME = "<img src=x onerror=document.title=1>"
FACTS = {
    "run_id": "run-1",
    "definitions": shell.definitions(),
    "config": {"name": NAME, "num_nodes": 1, "nproc_per_node": 4},
    "model_label": "CNN",
    "dataset_label": "<b>Fashion-MNIST</b>",
    "strategy_sharing": "Each rank has a replica.",
    "no_fingerprints": None,
}
PAGE = """<!doctype html><body style="background: GROUND"><div id="output"></div><script type="module">
const held = HELD;
const listeners = new Set();
window.asked = [];
const model = {
  get: (name) => held[name],
  on: (_, listener) => listeners.add(listener),
  off: (_, listener) => listeners.delete(listener),
  send: (message) => window.asked.push(message),
};
window.show = (news) => {
  held.shown = { ...held.shown, ...news };
  for (const listener of listeners) listener();
};
const script = URL.createObjectURL(new Blob([held.script], { type: "text/javascript" }));
(await import(script)).default.render({ model, el: document.getElementById("output") });
</script>"""


@pytest.fixture
def picture(tmp_path: Path) -> dict[str, Any]:
    """Return the picture of a live run of four ranks."""
    found = live.picture_of(Finished(tmp_path / "run-1", 3000))
    found["head"] |= {"state": "running", "reason": ""}
    return found


@pytest.fixture
def watched(new_context: NewContext) -> Iterator[Watched]:
    """Return a page whose clock is turned on by the test: all pages of a context share it."""
    watched = Watched(new_context().new_page())
    watched.page.clock.install()
    yield watched
    assert watched.complaints == []


def shown(page: Page, picture: dict[str, Any], ground: str = "white") -> Locator:
    """Open the view in an output of this colour."""
    held = {"facts": FACTS, "shown": picture, "styles": live.styles(), "script": live.script()}
    text = json.dumps(held).replace("</", "<\\/")
    page.set_content(PAGE.replace("GROUND", ground).replace("HELD", text))
    view = page.locator(".ddp-notebook")
    expect(view.locator(".ddp-ranks-list li")).to_have_count(4)
    return view


def test_text_is_text_and_buttons_wait_for_the_kernel(page: Page, picture: dict[str, Any]) -> None:
    view = shown(page, picture)
    expect(view.locator("header strong")).to_have_text(NAME)
    expect(view.locator("header")).to_contain_text("<b>Fashion-MNIST</b>")
    expect(view.locator(".ddp-device")).to_have_count(4)
    assert view.locator("button:not(header button)").count() == 0  # no button without an effect
    before = view.locator("path.ddp-notebook-loss").get_attribute("d")
    picture["traces"]["loss"]["y"][-1] = 0.01
    page.evaluate("(news) => show(news)", {"traces": picture["traces"]})
    assert view.locator("path.ddp-notebook-loss").get_attribute("d") != before
    stop, silence = view.get_by_role("button", name="Stop"), view.locator(".ddp-notebook-silence")
    stop.click()
    expect(stop).to_be_disabled()
    assert page.evaluate("asked") == [{"do": "stop"}]
    page.clock.run_for(5000)
    expect(silence).to_contain_text("busy with a cell: Stop takes effect")
    page.evaluate("(news) => show(news)", {"note": {"number": 1, "text": "<i>Saving</i>"}})
    expect(view.locator(".ddp-notebook-words")).to_have_text("<i>Saving</i>")
    expect(silence).to_be_hidden()
    page.clock.run_for(20_000)
    expect(silence).to_contain_text('open_run("run-1")')
    expect(stop).to_be_disabled()
    page.evaluate("(head) => show({ head })", picture["head"] | {"state": "finished"})
    page.clock.run_for(20_000)
    expect(silence).to_be_hidden()  # an ended run has no news
    assert page.title() == ""


def test_it_has_the_colours_of_the_notebook_in_a_narrow_output(page: Page, picture: dict[str, Any]) -> None:
    page.set_viewport_size({"width": 380, "height": 900})
    ground = "(element) => Number(getComputedStyle(element).backgroundColor.match(/\\d+/)[0])"
    assert shown(page, picture, "rgb(17, 17, 17)").evaluate(ground) < 60
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert shown(page, picture, "white").evaluate(ground) >= 60
