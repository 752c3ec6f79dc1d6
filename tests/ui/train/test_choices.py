"""The choices of the form: selected values reach the run, and incompatible values are not offered."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

from playwright.sync_api import expect

from tests.harness import END_TIMEOUT_S, wait_until
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness


def open_form(watched: Watched, server: Server) -> None:
    watched.page.goto(server.address)
    watched.page.wait_for_selector(".ddp-equation")
    watched.wait_until_answered()


def pick(watched: Watched, label: str, option: str) -> None:
    """Select an option and wait for the dependent updates."""
    watched.page.get_by_label(label, exact=True).click()
    watched.page.get_by_role("option", name=option).click()
    watched.wait_until_answered()


def test_a_picked_data_set_brings_values_that_learn_and_what_to_expect(
    server: Server, watched: Watched
) -> None:
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Iris")
    pick(watched, "Model", "Linear")
    expect(page.get_by_label("Batch per rank")).to_have_value("2")
    expect(page.get_by_label("Epochs", exact=True)).to_have_value("34")
    expect(page.locator("#expectation")).to_contain_text("1,020 steps: accuracy of about 0.9")
    page.get_by_label("Batch per rank").fill("5")
    page.get_by_label("Batch per rank").blur()
    expect(page.locator("#expectation")).to_contain_text("408 steps in all")
    pick(watched, "Data set", "Wine")
    expect(page.get_by_label("Batch per rank")).to_have_value("5")
    expect(page.get_by_label("Epochs", exact=True)).to_have_value("67")
    assert watched.complaints == []


def test_the_rank_of_lora_belongs_to_models_that_have_it_and_sets_the_rate(
    server: Server, watched: Watched
) -> None:
    open_form(watched, server)
    rank, rate = (watched.page.locator(f"#field-{name}") for name in ("lora_rank", "learning_rate"))
    pick(watched, "Data set", "Jane Austen's novels")
    pick(watched, "Model", "Fine-tune a language model")
    expect(rank).to_be_visible()
    expect(rate.locator("textarea, input")).to_have_value("3e-05")
    rank.locator("input").fill("8")
    rank.locator("input").press("Tab")
    expect(rate.locator("textarea, input")).to_have_value("0.0009")
    pick(watched, "Model", "GPT with experts")
    expect(rank).to_be_hidden()
    expect(rate.locator("textarea, input")).to_have_value("0.001")


def test_accumulation_and_model_parallel_ranks_are_in_the_equation(server: Server, watched: Watched) -> None:
    page = watched.page
    open_form(watched, server)
    page.get_by_role("button", name="Optimizer and schedule").click()
    page.get_by_label("Accumulate gradients over").fill("3")
    page.get_by_label("Accumulate gradients over").blur()
    expect(page.locator(".ddp-equation")).to_contain_text("384")
    pick(watched, "Model", "Vision transformer")
    page.get_by_role("button", name="Parallelism").click()
    pick(watched, "Strategy", "Tensor parallel")
    expect(page.locator(".ddp-equation")).to_contain_text("model copy, 2 CPU ranks each")
    expect(page.locator(".ddp-equation")).to_contain_text("192")
    pick(watched, "Model", "Small CNN")
    expect(page.get_by_label("Strategy", exact=True)).to_have_value("DDP")


def test_fields_of_the_folds_reach_the_run(server: Server, watched: Watched, runs_dir: Path) -> None:
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Handwritten digits")
    pick(watched, "Model", "MLP")
    for fold in ("The model", "Optimizer and schedule", "Duration, evaluation, checkpoints", "Speed"):
        page.get_by_role("button", name=fold).click()
    pick(watched, "Model size", "small: 64 wide")
    expect(page.get_by_label("Momentum")).to_be_hidden()
    pick(watched, "Optimizer", "sgd")
    expect(page.get_by_label("Momentum")).to_be_visible()
    page.get_by_label("Momentum").fill("0.8")
    expect(page.get_by_label("Step factor")).to_be_hidden()
    pick(watched, "Precision", "bf16")
    page.get_by_label("Clip gradients at norm").fill("0.5")
    page.get_by_label("Stop after steps").fill("40")
    page.get_by_label("Stop after steps").blur()
    watched.wait_until_answered()
    runs_dir.mkdir(exist_ok=True)
    before = {path.name for path in runs_dir.iterdir()}
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    (name,) = {path.name for path in runs_dir.iterdir() if not path.name.startswith(".")} - before
    run = RunDirectory(runs_dir / name)
    config = json.loads(run.config.read_text())
    asked = {
        "model_size": "small",
        "optimizer": "sgd",
        "momentum": 0.8,
        "lr_gamma": 0.1,
        "precision": "bf16",
        "max_grad_norm": 0.5,
        "max_steps": 40,
    }
    assert {field: config[field] for field in asked} == asked
    assert config["early_stopping_patience"] is None and config["keep_last_checkpoints"] == 3
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error


def write_table(path: Path, *, broken: bool = False) -> None:
    """Write a table with three classes. If `broken`, one cell of a numeric column is text."""
    rows = [f"{4 + k + 0.1 * (i % 5):.1f},{2 + k / 2:.1f},{'abc'[k]}" for i in range(40) for k in range(3)]
    if broken:
        rows[5] = "long,2.0,a"
    path.write_text("\n".join(["length,width,kind", *rows]) + "\n")


def test_own_table_by_path_is_looked_at_and_trained_on(
    server: Server, watched: Watched, runs_dir: Path, tmp_path: Path
) -> None:
    write_table(tmp_path / "flowers.csv", broken=True)
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Your own data…")
    expect(page.get_by_label("Epochs", exact=True)).to_have_value("20")  # the default for unknown data
    expect(page.locator(".ddp-changes")).not_to_contain_text("Epochs")
    page.get_by_label("Path of your data").fill(str(tmp_path / "flowers.csv"))
    page.get_by_role("button", name="Inspect").click()
    seen = page.locator("#own-data-seen")
    expect(seen).to_contain_text("tabular classification")
    expect(seen).to_contain_text("rows; to be predicted:")
    expect(seen).to_contain_text("'long' in line 7")
    expect(seen).to_contain_text("Fix these problems before training:")
    # The message next to Start refers to the field; the field is marked, and the faults are listed once.
    expect(page.locator("#problems")).to_contain_text("Path of your data: the data cannot be used as it is.")
    expect(page.locator("#field-data_path")).to_have_attribute("data-is-wrong", "yes")
    expect(page.locator("#field-data_path")).not_to_have_attribute("data-problem", re.compile("."))

    write_table(tmp_path / "flowers.csv")
    page.get_by_role("button", name="Inspect").click()
    expect(seen).to_contain_text("96 rows to train, 24 to validate")
    expect(page.get_by_label("Model", exact=True)).to_have_value("MLP for tables")
    page.get_by_label("Batch per rank").fill("8")
    page.get_by_label("Batch per rank").blur()
    expect(page.locator(".ddp-equation")).to_contain_text("16")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    run = RunDirectory(runs_dir / page.url.partition("?id=")[2])
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error
    accuracies = [e["metrics"]["accuracy"] for e in events.read_all(run.events) if e["kind"] == "eval"]
    assert accuracies[-1] > 0.6


def test_uploaded_zip_of_images_is_kept_shown_and_its_names_are_text(
    server: Server, watched: Watched, runs_dir: Path, tmp_path: Path
) -> None:
    from PIL import Image

    archive = tmp_path / "my <b>photos.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for label in ("<img src=x onerror=alert(1)>", "dogs"):
            for number in range(6):
                picture = io.BytesIO()
                Image.new("RGB", (20, 20), (40 * number, 90, 10)).save(picture, "PNG")
                file.writestr(f"{label}/{number}.png", picture.getvalue())
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Your own data…")
    page.locator("#own-data input[type=file]").set_input_files(archive)
    seen = page.locator("#own-data-seen")
    expect(seen).to_contain_text("image classification")
    expect(seen).to_contain_text("Every image becomes 20 × 20 pixels, in colour.")
    expect(seen).to_contain_text("<img src=x onerror=alert(1)>")
    # Only generated thumbnails, no original images of the upload.
    expect(page.locator("#own-data-seen img")).to_have_count(12)
    (kept,) = (runs_dir.parent / "uploads").glob("*.zip")
    assert kept.name == "my-bphotos.zip"
    assert kept.read_bytes() == archive.read_bytes()
    assert watched.foreign_requests == [] and watched.complaints == []


DROP = """([name, text]) => {
  const given = new DataTransfer();
  given.items.add(new File([text], name));
  const told = (kind) => document.getElementById("main-fields").dispatchEvent(
    new DragEvent(kind, { dataTransfer: given, bubbles: true, cancelable: true }));
  told("dragover");
  const seen = document.querySelector(".ddp-drop")?.checkVisibility();
  told("drop");
  return seen;
}"""


def test_a_file_dropped_on_the_form_becomes_own_data_and_names_the_run(
    server: Server, watched: Watched
) -> None:
    page = watched.page
    open_form(watched, server)
    rows_of_file = [f"{4 + i % 3},{i},{('red', 'white')[i % 2]},{'abc'[i % 3]}" for i in range(120)]
    text = "\n".join(["length,width,colour,kind", *rows_of_file])
    assert page.evaluate(DROP, ["petals.csv", text]) is True
    seen = page.locator("#own-data-seen")
    expect(seen).to_contain_text("Recognised as tabular classification")
    expect(page.locator(".ddp-drop")).to_be_hidden()
    expect(page.get_by_label("Data set", exact=True)).to_have_value("Your own data…")
    expect(page.get_by_label("Path of your data")).to_have_value(re.compile(r"petals\.csv$"))
    # The rules give 400 steps of 2 rows on each of 2 ranks, with 96 rows.
    expect(page.get_by_label("Batch per rank")).to_have_value("2")
    expect(page.get_by_label("Epochs", exact=True)).to_have_value("17")
    label = seen.get_by_role("columnheader").filter(has_text="to be predicted")
    expect(label).to_have_count(1)
    expect(page.locator("#problems")).to_be_empty()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    expect(page.locator(".ddp-subtitle")).to_contain_text("petals.csv")
    rows = page.locator(".ddp-sample-rows")
    expect(rows.get_by_role("columnheader").first).to_have_text("Predicted")
    expect(rows.get_by_role("columnheader").nth(1)).to_have_text("Truth")
    expect(rows.get_by_role("columnheader").last).to_have_text("colour")
    expect(rows.locator("tbody tr").first).to_contain_text(
        re.compile(r"\(\d+%\)(right|truth: ).*(red|white)")
    )
    assert watched.complaints == []


def write_images(folder: Path, *, num_broken: int) -> None:
    """Write two classes of twenty small images, some of which are invalid."""
    from PIL import Image

    for label in ("cats", "dogs"):
        (folder / label).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (8, 8), (10 * number, 90, 10)).save(folder / label / f"{number}.png")
    for number in range(num_broken):
        (folder / "cats" / f"{number}.png").write_bytes(b"no image")


def test_own_data_is_inspected_by_itself_and_what_helps_is_a_click(
    server: Server, watched: Watched, tmp_path: Path
) -> None:
    write_images(tmp_path / "pets", num_broken=3)
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Your own data…")
    seen, problems = page.locator("#own-data-seen"), page.locator("#problems")
    expect(problems.locator(".ddp-missing")).to_have_count(1)
    expect(problems.locator(".ddp-wrong")).to_have_count(0)
    path = page.get_by_label("Path of your data")
    path.focus()
    path.blur()
    watched.wait_until_answered()
    expect(problems.locator(".ddp-wrong")).to_have_count(0)

    path.fill(str(tmp_path / "pets"))
    path.press("Enter")
    expect(seen.locator(".ddp-fatal")).to_have_count(1)
    expect(problems.locator(".ddp-wrong")).to_have_count(1)
    seen.get_by_role("button", name="Leave out 3 of 40 samples").click()
    expect(seen).to_contain_text("It is left out.")
    expect(page.get_by_label("Leave out unreadable samples")).to_be_checked()
    expect(page.get_by_label("Batch per rank")).to_have_value("1")  # set by the rules
    expect(problems).to_be_empty()
    expect(page.locator("#equation")).to_contain_text("15")
    assert page.get_by_test_id("toast-body").count() == 0, "all was said in the box"

    page.get_by_label("Batch per rank").fill("500")
    page.get_by_label("Batch per rank").blur()
    problems.get_by_role("button", name="Use 15").click()
    expect(page.get_by_label("Batch per rank")).to_have_value("15")
    expect(problems).to_be_empty()
    assert watched.complaints == []


# Chooses what columns hold, each a task after the one before, while the request for the first is on its way.
CHOSEN_AT_ONCE = """async (list, kinds) => {
  for (const [name, kind] of Object.entries(kinds)) {
    const menu = list.querySelector(`select[aria-label="What ${name} holds"]`);
    menu.value = kind;
    menu.dispatchEvent(new Event("change", { bubbles: true }));
    await new Promise((resolve) => setTimeout(resolve));
  }
}"""
MESSY = "\n".join([
    "Orders 2024",
    "order;price;weight;colour;bought",
    *[
        f"{n * 37 % 120};{n % 9 + 1}.{100 + n * 7 % 900},50 €;{n * 3 % 80} kg;{('red', 'white')[n % 2]};"
        f"{('yes', 'no')[n % 3 == 0]}"
        for n in range(120)
    ],
])  # fmt: skip


def test_how_a_column_is_read_is_overridden_in_the_form_and_the_run_uses_it(
    server: Server, watched: Watched, runs_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "orders.csv").write_text(MESSY)
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Your own data…")
    path = page.get_by_label("Path of your data")
    path.fill(str(tmp_path / "orders.csv"))
    path.press("Enter")
    decisions = page.get_by_role("list", name="What each column holds")
    price = decisions.get_by_role("listitem").filter(has_text="price")
    expect(price).to_contain_text("number with a decimal comma and points between thousands and the unit €")
    first = page.locator(".ddp-rows tbody tr").first
    expect(first).to_contain_text("1.100,50 €→ 1100.5")
    expect(decisions.get_by_role("listitem").filter(has_text="order")).to_contain_text("row index, ignored")

    kinds = {"colour": "ignored", "price": "ignored", "weight": "number"}
    decisions.evaluate(CHOSEN_AT_ONCE, kinds)
    expect(price).to_contain_text("ignored")
    expect(decisions.get_by_role("listitem").filter(has_text="colour")).to_contain_text("ignored")
    watched.wait_until_answered()
    expect(first.locator(".ddp-not-read")).to_have_count(3)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    run = RunDirectory(runs_dir / page.url.partition("?id=")[2])
    reading = json.loads(json.loads(run.config.read_text())["data_reading"])
    assert reading == {"columns": kinds}
    rows = page.locator(".ddp-sample-rows")
    expect(rows.get_by_role("columnheader").last).to_have_text("weight")
    expect(rows.get_by_role("columnheader")).to_have_count(3)
    assert watched.complaints == []
