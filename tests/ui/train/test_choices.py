"""The choices of the form: selected values reach the run, and incompatible values are not offered."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

from playwright.sync_api import expect

from tests.ui.conftest import Watched, assert_usable_on_a_phone, wait_until_finished
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory


def open_form(watched: Watched, server: Server) -> None:
    watched.page.goto(server.address)
    watched.page.wait_for_selector(".ddp-equation")
    watched.wait_until_answered()


def pick(watched: Watched, label: str, option: str) -> None:
    """Select an option and wait for the dependent updates."""
    watched.page.get_by_label(label, exact=True).click()
    watched.page.get_by_role("option", name=option).click()
    watched.wait_until_answered()


def test_a_typed_letter_moves_to_an_option(server: Server, watched: Watched) -> None:
    page = watched.page
    open_form(watched, server)
    data = page.get_by_label("Data set", exact=True)
    data.focus()
    num_options = page.get_by_role("option").count()
    for letter in "jj":  # no other option begins with it
        page.keyboard.press(letter)
    expect(page.get_by_role("option")).to_have_count(num_options)
    page.keyboard.press("Enter")
    expect(data).to_have_value("Jane Austen's novels")
    watched.wait_until_answered()


def test_choices_bring_values_that_learn(server: Server, watched: Watched) -> None:
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Iris")
    pick(watched, "Model", "Linear")
    batch, epochs = page.get_by_label("Batch per rank"), page.get_by_label("Epochs", exact=True)
    expect(batch).to_have_value("2")
    expect(epochs).to_have_value("34")
    expect(page.locator("#expectation")).to_contain_text("1,020 steps: accuracy of about 0.9")
    batch.fill("5")
    batch.blur()
    expect(page.locator("#expectation")).to_contain_text("408 steps in all")
    pick(watched, "Data set", "Wine")
    expect(batch).to_have_value("5")
    expect(epochs).to_have_value("67")

    rank, rate = (page.locator(f"#field-{name}") for name in ("lora_rank", "learning_rate"))
    pick(watched, "Data set", "Jane Austen's novels")
    pick(watched, "Model", "Fine-tune a language model")
    expect(rank).to_be_visible()
    expect(rate.locator("textarea, input")).to_have_value("3e-05")
    rank.locator("input").fill("8")
    rank.locator("input").press("Tab")
    expect(rate.locator("textarea, input")).to_have_value("0.0009")
    pick(watched, "Model", "GPT with experts")
    expect(rank).to_be_hidden()
    expect(rate.locator("textarea, input")).to_have_value("0.003")


def test_fields_of_the_folds_reach_the_run(server: Server, watched: Watched, runs_dir: Path) -> None:
    page = watched.page
    open_form(watched, server)
    for fold in ("The model", "Optimizer and schedule", "Duration, evaluation, checkpoints", "Speed"):
        page.get_by_role("button", name=fold).click()
    accumulated = page.get_by_label("Accumulate gradients over")
    accumulated.fill("3")
    accumulated.blur()
    expect(page.locator(".ddp-equation")).to_contain_text("384")
    pick(watched, "Model", "Vision transformer")
    page.get_by_role("button", name="Parallelism").click()
    pick(watched, "Strategy", "Tensor parallel")
    expect(page.locator(".ddp-equation")).to_contain_text("model copy, 2 CPU ranks each")
    expect(page.locator(".ddp-equation")).to_contain_text("192")
    pick(watched, "Model", "Small CNN")
    expect(page.get_by_label("Strategy", exact=True)).to_have_value("DDP")
    pick(watched, "Data set", "Handwritten digits")
    pick(watched, "Model", "MLP")
    pick(watched, "Model size", "small: 64 wide")
    expect(page.get_by_label("Momentum")).to_be_hidden()
    pick(watched, "Optimizer", "sgd")
    page.get_by_label("Momentum").fill("0.8")
    expect(page.get_by_label("Step factor")).to_be_hidden()
    pick(watched, "Precision", "bf16")
    page.get_by_label("Clip gradients at norm").fill("0.5")
    page.get_by_label("Stop after steps").fill("40")
    page.get_by_label("Stop after steps").blur()
    watched.wait_until_answered()
    run = start_run(watched, runs_dir)
    config = json.loads(run.config.read_text())
    asked = {
        "model_size": "small",
        "gradient_accumulation_steps": 3,
        "optimizer": "sgd",
        "momentum": 0.8,
        "lr_gamma": 0.1,
        "precision": "bf16",
        "max_grad_norm": 0.5,
        "max_steps": 40,
        "early_stopping_patience": None,
        "keep_last_checkpoints": 3,
    }
    assert {field: config[field] for field in asked} == asked
    wait_until_finished(run)


def start_run(watched: Watched, runs_dir: Path) -> RunDirectory:
    watched.page.get_by_role("button", name="Start").click()
    watched.page.wait_for_url("**/run?id=*")
    return RunDirectory(runs_dir / watched.page.url.partition("?id=")[2])


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


def test_a_file_dropped_on_the_form_is_own_data(server: Server, watched: Watched, runs_dir: Path) -> None:
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
    start_run(watched, runs_dir)
    expect(page.locator(".ddp-subtitle")).to_contain_text("petals.csv")
    rows = page.locator(".ddp-sample-rows")
    expect(rows.get_by_role("columnheader").first).to_have_text("Predicted")
    expect(rows.get_by_role("columnheader").nth(1)).to_have_text("Truth")
    expect(rows.get_by_role("columnheader").last).to_have_text("colour")
    expect(rows.locator("tbody tr").first).to_contain_text(
        re.compile(r"\(\d+%\)(right|truth: ).*(red|white)")
    )


def zip_of_images(path: Path, *labels: str, num_broken: int) -> Path:
    """Write twenty small images of each class; some of the first class are invalid."""
    from PIL import Image

    with zipfile.ZipFile(path, "w") as file:
        for label in labels:
            for number in range(20):
                picture = io.BytesIO()
                Image.new("RGB", (8, 8), (10 * number, 90, 10)).save(picture, "PNG")
                is_broken = label == labels[0] and number < num_broken
                file.writestr(f"{label}/{number}.png", b"no image" if is_broken else picture.getvalue())
    return path


def test_uploaded_images_are_inspected(
    server: Server, watched: Watched, runs_dir: Path, tmp_path: Path
) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    archive = zip_of_images(tmp_path / "my <b>photos.zip", hostile, "dogs", num_broken=3)
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Your own data…")
    seen, problems = page.locator("#own-data-seen"), page.locator("#problems")
    expect(problems.locator(".ddp-missing")).to_have_count(1)
    expect(problems.locator(".ddp-wrong")).to_have_count(0)
    page.get_by_label("Path of your data").focus()
    page.get_by_label("Path of your data").blur()
    watched.wait_until_answered()
    expect(problems.locator(".ddp-wrong")).to_have_count(0)

    page.locator("#own-data input[type=file]").set_input_files(archive)
    expect(seen.locator(".ddp-fatal")).to_have_count(1)
    expect(problems.locator(".ddp-wrong")).to_have_count(1)
    seen.get_by_role("button", name="Leave out 3 of 40 samples").click()
    expect(seen).to_contain_text("It is left out.")
    expect(page.get_by_label("Leave out unreadable samples")).to_be_checked()
    expect(page.get_by_label("Batch per rank")).to_have_value("1")  # set by the rules
    expect(problems).to_be_empty()
    expect(page.locator("#equation")).to_contain_text("15")
    assert page.get_by_test_id("toast-body").count() == 0, "all was said in the box"
    expect(seen).to_contain_text("image classification")
    expect(seen).to_contain_text(hostile)
    # Only generated thumbnails, no original images of the upload.
    expect(seen.locator("img")).to_have_count(12)
    (kept,) = (runs_dir.parent / "uploads").glob("*.zip")
    assert kept.name == "my-bphotos.zip"
    assert kept.read_bytes() == archive.read_bytes()

    page.get_by_label("Batch per rank").fill("500")
    page.get_by_label("Batch per rank").blur()
    problems.get_by_role("button", name="Use 15").click()
    expect(page.get_by_label("Batch per rank")).to_have_value("15")
    expect(problems).to_be_empty()


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


def test_how_a_column_is_read(server: Server, watched: Watched, runs_dir: Path, tmp_path: Path) -> None:
    rows = [f"{4 + k + 0.1 * (i % 5):.1f},{2 + k / 2:.1f},{'abc'[k]}" for i in range(40) for k in range(3)]
    rows[5] = "long,2.0,a"
    (tmp_path / "flowers.csv").write_text("\n".join(["length,width,kind", *rows]) + "\n")
    (tmp_path / "orders.csv").write_text(MESSY)
    page = watched.page
    open_form(watched, server)
    pick(watched, "Data set", "Your own data…")
    expect(page.get_by_label("Epochs", exact=True)).to_have_value("20")  # the default for unknown data
    expect(page.locator(".ddp-changes")).not_to_contain_text("Epochs")
    path = page.get_by_label("Path of your data")
    path.fill(str(tmp_path / "flowers.csv"))
    page.get_by_role("button", name="Inspect").click()
    seen = page.locator("#own-data-seen")
    expect(seen).to_contain_text("tabular classification")
    expect(seen).to_contain_text("rows; to be predicted:")
    expect(seen).to_contain_text("'long' in line 7")
    expect(seen).to_contain_text("Fix these problems before training:")
    # The message next to Start refers to the field; the field is marked, and the faults are listed once.
    expect(page.locator("#problems")).to_contain_text("Path of your data: the data cannot be used yet.")
    expect(page.locator("#field-data_path")).to_have_attribute("data-is-wrong", "yes")
    expect(page.locator("#field-data_path")).not_to_have_attribute("data-problem", re.compile("."))

    path.fill(str(tmp_path / "orders.csv"))
    path.press("Enter")
    expect(seen).to_contain_text("rows to train")
    expect(page.get_by_label("Model", exact=True)).to_have_value("MLP for tables")
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
    run = start_run(watched, runs_dir)
    reading = json.loads(json.loads(run.config.read_text())["data_reading"])
    assert reading == {"columns": kinds}
    headers = page.locator(".ddp-sample-rows").get_by_role("columnheader")
    expect(headers.last).to_have_text("weight")
    expect(headers).to_have_count(3)


def test_the_script_marks_the_lines_that_a_setting_changes(server: Server, watched: Watched) -> None:
    page = watched.page
    open_form(watched, server)
    page.locator("#fold-code > .label-wrap").click()
    code = page.locator("#ddp-form-code")
    expect(code.locator(".ddp-code-line").first).to_be_visible()
    changed = code.locator(".ddp-code-changed")
    expect(changed).to_have_count(0)
    page.get_by_label("Batch per rank").fill("50")
    expect(changed).to_have_count(1)
    expect(changed).to_contain_text("BATCH_SIZE = 50")
    expect(changed).to_be_in_viewport()
    expect(code.get_by_role("status")).to_contain_text("Changed: 1 line")
    page.get_by_label("Batch per rank").fill("0")
    expect(code.get_by_role("status")).to_contain_text("cannot be started")
    expect(code.locator(".ddp-code-lines")).to_be_hidden()
    page.get_by_label("Batch per rank").fill("40")
    expect(code.locator(".ddp-code-line").filter(has_text="BATCH_SIZE = 40")).to_be_visible()
    assert_usable_on_a_phone(page, "#ddp-form-code")
