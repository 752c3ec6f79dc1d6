"""The columns of the list of runs: numbers are never cut off, and users choose the columns."""

from __future__ import annotations

import json

from playwright.sync_api import Page, Route, expect

NUMBERS = ("ranks", "progress", "loss", "best", "started", "took")
LARGE = {
    "step": 123_456_789,
    "num_steps": 123_456_789,
    "loss": 0.000012345,
    "best_metric": {"name": "perplexity", "value": 123_456_789.0, "step": 1},
    "took_s": 99 * 86_400 + 23 * 3600,
    "nproc_per_node": 1024,
}
# The cells whose content is larger than the cell or the row.
CUT = """(cells) => cells.filter((cell) => {
  const box = cell.getBoundingClientRect();
  const row = cell.parentElement.getBoundingClientRect();
  return [...cell.children, cell].some((part) => part.scrollWidth > part.clientWidth && part.clientWidth > 0)
    || box.top < row.top || box.bottom > row.bottom;
}).map((cell) => cell.outerHTML)"""


def test_no_number_is_cut_however_large(page: Page) -> None:
    def enlarge(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        found["rows"] = [row | LARGE for row in found["rows"]]
        route.fulfill(response=answer, body=json.dumps(found))

    page.set_viewport_size({"width": 1024, "height": 900})
    page.route("**/live/runs?since=*", enlarge)
    page.reload()
    expect(page.locator(".ddp-cell-progress").nth(1)).to_contain_text("123,456,789")
    for column in NUMBERS:
        cells = page.locator(f".ddp-list-row .ddp-cell-{column}:visible")
        assert cells.evaluate_all(CUT) == []
    assert page.locator(".ddp-list-row .ddp-cell-loss:visible").count() > 5


def test_columns_are_chosen_by_keyboard_and_kept(page: Page) -> None:
    button = page.get_by_role("button", name="Columns")
    button.focus()
    page.keyboard.press("Enter")
    menu = page.get_by_role("group", name="Columns")
    expect(menu.get_by_role("checkbox", name="State")).to_be_focused()
    page.keyboard.press("Space")  # hides the State column
    page.keyboard.press("ArrowDown")
    expect(menu.get_by_role("checkbox", name="Model")).to_be_focused()
    menu.get_by_role("checkbox", name="Took").set_checked(True)
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(menu).to_be_hidden()

    def assert_chosen() -> None:
        expect(page.get_by_role("columnheader", name="State")).to_be_hidden()
        expect(page.get_by_role("columnheader", name="Took")).to_be_visible()
        expect(page.locator(".ddp-list-row .ddp-cell-state").first).to_be_hidden()
        expect(page.locator(".ddp-list-row .ddp-cell-took").first).to_be_visible()

    assert_chosen()
    page.reload()
    assert_chosen()
    button.click()
    menu.get_by_role("button", name="As many as fit").click()
    expect(page.get_by_role("columnheader", name="State")).to_be_visible()
