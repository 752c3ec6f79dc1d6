"""The state of the form: the chosen preset, changed fields, groups of data sets, a visible Start button."""

from __future__ import annotations

from collections import Counter

from gradio_client import Client
from playwright.sync_api import Locator, Route, expect

from tests.ui.conftest import PHONE, Start, Watched, wait_until_finished
from tests.ui.train.test_choices import open_form
from tools.page_driver import Server


def test_the_preset_is_pressed_until_a_field_differs(server: Server, watched: Watched) -> None:
    page = watched.page
    open_form(watched, server)
    pressed = page.locator(".ddp-preset[aria-pressed=true]")
    expect(pressed).to_have_attribute("id", "preset-fashion")
    page.locator("#preset-moons").click()
    expect(pressed).to_have_attribute("id", "preset-moons")
    line = page.locator(".ddp-changes")
    expect(line).to_contain_text("Data set Fashion-MNIST → Two moons")
    expect(page.locator("#command")).to_contain_text('"model": "tabular_mlp", "dataset": "moons"')
    expect(page.locator(".ddp-memory-card")).to_contain_text("parameters")
    expect(page.locator("#fold-optimizer .ddp-fold-count")).to_have_text("· 1 changed")  # weight decay
    fold = page.get_by_role("button", name="Duration, evaluation, checkpoints · 2 changed")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "true")
    watched.wait_until_answered()
    rate = page.locator("#field-learning_rate").get_by_role("textbox")
    rate.fill("0,0007")
    rate.blur()
    expect(line).to_contain_text("Learning rate 0.002 → 0.0007")
    expect(pressed).to_have_count(0)
    expect(page.locator("#command")).to_contain_text('"learning_rate": 0.0007')
    rate.fill("8")
    rate.blur()
    before = page.locator(".ddp-before", has_text="times the highest that usually works")
    expect(before).to_be_visible()
    rate.fill("0.002")
    rate.blur()
    expect(before).to_have_count(0)

    # A problem leads to its field in a closed fold.
    fold = page.get_by_role("button", name="Optimizer and schedule")
    fold.click()
    field = page.locator("#field-warmup_steps input")
    field.fill("-5")
    field.blur()
    problem = page.locator("#problems [data-field=warmup_steps]")
    expect(problem).to_contain_text("Warm-up steps: -5 is not possible. Allowed: a whole number")
    fold.click()
    expect(field).to_be_hidden()
    problem.get_by_role("button").click()
    expect(field).to_be_visible()
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")


def _choose_moons(server: Server, watched: Watched) -> Locator:
    """Choose a preset and return the line with the changes."""
    open_form(watched, server)
    watched.page.locator("#preset-moons").click()
    line = watched.page.locator(".ddp-changes")
    expect(line).to_contain_text("Two moons")
    watched.wait_until_answered()  # Gradio reports a request that a new page cuts off as an error
    return line


# Notes how many calls of each of Gradio's functions were under way at the same time.
COUNT_CALLS = """
const ask = window.fetch, now = {};
window.most = {};
window.fetch = async (address, options) => {
  const isCall = String(address.url ?? address).endsWith("/run/predict");
  const name = isCall ? JSON.parse(options.body).fn_index : "other";
  now[name] = (now[name] ?? 0) + 1;
  window.most[name] = Math.max(window.most[name] ?? 0, now[name]);
  try {
    return await ask(address, options);
  } finally {
    now[name] -= 1;
  }
};
"""


def test_a_reload_keeps_what_was_typed(server: Server, client: Client, watched: Watched) -> None:
    watched.page.add_init_script(COUNT_CALLS)
    page, line = watched.page, _choose_moons(server, watched)
    watched.wait_until_answered()
    page.set_viewport_size(PHONE)
    page.evaluate("scrollTo(0, 0)")  # a browser keeps the place, too
    page.reload()
    expect(page.locator("#preset-moons")).to_be_in_viewport(ratio=0.99)
    assert page.evaluate("scrollY") == 0, "a phone shows the chosen preset"
    rate = page.locator("#field-learning_rate").get_by_role("textbox")
    rate.fill("none")
    rate.blur()
    expect(page.locator("#problems [data-field=learning_rate]")).to_be_visible()
    watched.wait_until_answered()
    page.reload()
    expect(line).to_contain_text("Data set Fashion-MNIST → Two moons")
    expect(rate).to_have_value("none")
    expect(page.locator("#problems [data-field=learning_rate]")).to_be_visible()
    watched.wait_until_answered()
    # Of two previews under way, the older could be answered last, and describe another form.
    most = page.evaluate("window.most")
    last_wins = {
        str(each["id"]) for each in client.config["dependencies"] if each["trigger_mode"] == "always_last"
    }
    assert {most[number] for number in last_wins & most.keys()} == {1}
    rate.fill("0.003")
    rate.blur()
    expect(line).to_contain_text("Learning rate 0.002 → 0.003")
    watched.wait_until_answered()
    # When the page is left, because until then the form may store its own values.
    broken = '{"model": [[1]], "batch_size": {}}'
    page.evaluate(
        "text => addEventListener('pagehide', () => sessionStorage.setItem('ddp-form', text))", broken
    )
    page.reload()
    expect(page.locator(".ddp-preset[aria-pressed=true]")).to_have_attribute("id", "preset-fashion")
    watched.wait_until_answered()
    page.goto(f"{server.address}/runs")
    page.goto(server.address)
    expect(page.locator(".ddp-preset[aria-pressed=true]")).to_have_attribute("id", "preset-fashion")
    watched.wait_until_answered()


def test_a_reload_during_a_reload_keeps_what_was_typed(server: Server, watched: Watched) -> None:
    page, line = watched.page, _choose_moons(server, watched)

    def leave_unanswered(route: Route) -> None:
        if "moons" not in (route.request.post_data or ""):
            route.continue_()

    # Only the request that fills in the form names the data set: its answer does not arrive.
    page.route("**/gradio_api/**", leave_unanswered)
    page.reload()
    expect(line).to_have_attribute("data-preset", "fashion")
    page.unroute("**/gradio_api/**")
    page.reload()
    expect(line).to_contain_text("Two moons")
    watched.complaints.clear()  # Gradio reports the request that was cut off


def test_no_event_is_followed_by_two_handlers_that_put_calls_off(client: Client) -> None:
    """Two such handlers would trigger each other endlessly."""
    following = Counter(
        (target, event)
        for dependency in client.config["dependencies"]
        if dependency["trigger_mode"] == "always_last"
        for target, event in dependency["targets"]
    )
    assert following
    assert [event for event, number in following.items() if number > 1] == []


def test_run_again_says_what_differs_from_that_run(server: Server, watched: Watched, start: Start) -> None:
    run = start(max_steps=5, name="the first", learning_rate=0.001)
    wait_until_finished(run)
    page = watched.page
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.get_by_role("link", name="Run again with changes").first.click()
    line = page.locator(".ddp-changes")
    expect(line).to_have_text("Same settings as the first.")
    expect(page.get_by_label("Batch per rank")).to_have_value("32")
    expect(page.get_by_label("Model", exact=True)).to_have_value("MLP")
    expect(page.get_by_role("region", name="A short tour")).to_be_hidden()
    watched.wait_until_answered()
    page.goto(f"{server.address}/?from={run.run_id}&learning_rate=0.0005")
    expect(line).to_have_text("Same settings as the first, except: Learning rate 0.001 → 0.0005")
    page.locator("#preset-austen").click()
    expect(line).to_contain_text("Changed from the defaults: Data set Fashion-MNIST → Jane Austen's novels")
    watched.wait_until_answered()
