"""Every term on the page has its definition as a tooltip: by pointer, by keyboard and by touch."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from ddp_gui.http import shell
from tests.ui.conftest import PHONE, NewContext
from tools.page_driver import Server

IN_THE_EQUATION = '.ddp-equation [data-term="global batch"]'
GLOBAL_BATCH = f"global batch: {shell.definitions()['global batch']}"
# For each term on the page: its name, and the text, role and state of its tooltip.
DESCRIBED = """() => [...document.querySelectorAll("[data-term]")].map((term) => {
  const tip = document.getElementById(term.getAttribute("aria-describedby"));
  return [term.dataset.term, tip?.textContent, tip?.getAttribute("role"), tip?.hidden];
})"""


def described(page: Page) -> set[str]:
    """Return the terms on the page. Each must have a hidden tooltip with the glossary's definition."""
    page.wait_for_function(
        "() => { const terms = [...document.querySelectorAll('[data-term]')];"
        " return terms.length > 0 && terms.every((term) => term.hasAttribute('aria-describedby')); }"
    )
    found = page.evaluate(DESCRIBED)
    for name, words, role, is_hidden in found:
        assert (words, role, is_hidden) == (f"{name}: {shell.definitions()[name]}", "tooltip", True)
    return {name for name, *_ in found}


def test_every_term_is_described_when_the_pointer_or_the_focus_is_on_it(server: Server, page: Page) -> None:
    page.goto(server.address)
    term, tip = page.locator(IN_THE_EQUATION), page.locator("#ddp-tip-global-batch")
    expect(term).to_have_attribute("aria-describedby", "ddp-tip-global-batch")
    term.hover()
    expect(tip).to_be_visible()
    expect(tip).to_have_text(GLOBAL_BATCH)
    tip.hover()
    expect(tip).to_be_visible()  # it stays while it is read
    page.get_by_role("heading", level=1).hover()
    expect(tip).to_be_hidden()

    mark, tip = page.locator("#field-learning_rate .ddp-term-mark"), page.locator("#ddp-tip-learning-rate")
    mark.wait_for()
    page.get_by_label("Batch per rank").focus()
    while not mark.evaluate("(mark) => mark === document.activeElement"):
        page.keyboard.press("Tab")
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    expect(mark).to_be_focused()

    folded = page.locator("button.label-wrap:not(.open)")
    while folded.count() > 0:
        folded.first.click()
    page.locator("#field-hang_timeout_s .ddp-term-mark").wait_for()
    # The field for LoRA is shown with a model that has it.
    assert {"global batch", *shell.field_terms().values()} - {"LoRA"} <= described(page)


def test_a_tooltip_comes_with_a_tap_and_lies_within_a_phone(new_context: NewContext, server: Server) -> None:
    page = new_context(viewport=PHONE, has_touch=True, is_mobile=True).new_page()
    page.goto(server.address)
    mark, tip = page.locator("#field-num_epochs .ddp-term-mark"), page.locator("#ddp-tip-epoch")
    mark.tap()
    expect(tip).to_be_visible()
    box = tip.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    page.locator("#equation").tap(position={"x": 2, "y": 2})
    expect(tip).to_be_hidden()
