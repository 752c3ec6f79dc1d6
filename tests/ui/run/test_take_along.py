"""What a user takes along from a run's page: its script, files for other machines, and the model."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.made_run import make_finished
from tests.ui.conftest import HAS_ALL, Watched, assert_usable_on_a_phone
from tests.unit.ddp_gui.runs.test_runs import leave_events
from tests.unit.trained_runs import leave_trained_run
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

LABELS = ("torchrun commands", "Slurm script", "Kubeflow TrainJob", "SkyPilot task")


def test_the_script_is_downloaded_and_marked(server: Server, watched: Watched, runs_dir: Path) -> None:
    run = make_finished(RunDirectory(runs_dir / "as-code-1"), 1_000)
    page = watched.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.route("**/live/runs/*/code", lambda route: route.abort())
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.wait_for_function(HAS_ALL)
    section = page.locator(".ddp-as-code")
    fold, status = section.locator("summary"), section.get_by_role("status")
    fold.press("Enter")
    expect(status).to_contain_text("does not answer")
    page.unroute("**/live/runs/*/code")
    watched.complaints.clear()  # the browser logs the aborted request
    fold.click()
    fold.click()  # opening it again asks again
    lines = section.locator(".ddp-code-line")
    expect(lines.first).to_contain_text('"""')

    section.get_by_role("button", name="Copy").click()
    expect(section.get_by_role("button", name="Copied")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert "init_process_group" in text
    assert "init_process_group" in "".join(lines.all_inner_texts())
    assert lines.count() == text.count("\n")
    expect(status).to_contain_text("torchrun --nproc_per_node 2 train.py")
    with page.expect_download() as started:
        section.get_by_role("link", name="Download train.py").click()
    assert started.value.suggested_filename == "train.py"
    assert started.value.path().read_text(encoding="utf-8") == text
    with page.expect_download() as started:
        section.get_by_role("link", name="Download as a notebook").click()
    assert started.value.suggested_filename == "train.ipynb"
    assert json.loads(started.value.path().read_text(encoding="utf-8"))["nbformat"] == 4

    added, removed = section.locator(".ddp-code-added"), section.locator(".ddp-code-removed")
    expect(added).to_have_count(0)
    section.get_by_label("Mark what several ranks need").check()
    expect(added.filter(has_text="DistributedDataParallel(")).to_have_count(1)
    expect(removed.filter(has_text="RandomSampler(")).to_have_count(1)
    expect(status).to_contain_text("lines that 2 ranks need")
    assert_usable_on_a_phone(page, ".ddp-as-code")
    section.get_by_label("Mark what several ranks need").uncheck()
    expect(removed).to_have_count(0)


def test_files_for_other_machines_follow_the_choices(server: Server, page: Page, runs_dir: Path) -> None:
    run = make_finished(RunDirectory(runs_dir / "elsewhere-1"), 1_000)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.wait_for_function(HAS_ALL)
    page.locator(".ddp-elsewhere > summary").press("Enter")
    expect(page.locator(".ddp-elsewhere-list > li")).to_have_count(len(LABELS))
    for label in LABELS:
        row = page.get_by_role("listitem", name=label, exact=True)
        expect(row).to_contain_text("Not tested" if label != LABELS[0] else "Tested: this")
        page.get_by_role("button", name=f"Copy: {label}").click()
        expect(page.get_by_role("button", name=f"Copy: {label}")).to_have_text("Copied")
        with page.expect_download() as started:
            page.get_by_role("link", name=f"Download: {label}").click()
        text = started.value.path().read_text()
        assert page.evaluate("navigator.clipboard.readText()") == text
        row.locator("summary").click()
        expect(row.locator("code")).to_be_visible()
        assert row.locator("code").text_content() == text

    machines, words = page.get_by_label("Machines"), page.locator(".ddp-elsewhere [role=status]")
    script = page.get_by_role("listitem", name="Slurm script", exact=True).locator("code")
    expect(machines).to_have_value("2")
    machines.fill("3")
    machines.press("Tab")
    expect(words).to_contain_text("3 machines: 6 ranks in all")
    expect(script).to_contain_text("#SBATCH --nodes=3")
    page.get_by_label("One GPU for each rank").check()
    expect(script).to_contain_text("#SBATCH --gpus-per-node=2")
    machines.fill("0")
    machines.press("Tab")
    expect(words).to_contain_text("3 machines")  # the browser shows the allowed values; no request is sent
    link = page.get_by_role("link", name="Download: Slurm")
    assert "num_nodes=3&gpus=true" in str(link.get_attribute("href"))
    assert_usable_on_a_phone(page, ".ddp-elsewhere")


def test_a_model_is_packed_with_its_code(server: Server, runs_dir: Path, watched: Watched) -> None:
    page, run = watched.page, leave_trained_run(runs_dir, "digits", "linear", steps=(5, 10))[0]
    leave_events(run)
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.wait_for_function(HAS_ALL)
    card = page.locator(".ddp-take-home")
    card.scroll_into_view_if_needed()
    expect(page.get_by_label("Checkpoint to take home")).to_have_value("10")
    page.get_by_role("button", name="Take it home").click()
    expect(card.locator("[role=status]").first).to_contain_text("Packing")
    link = card.get_by_role("link", name="Download step 10")
    expect(link).to_be_visible()
    with page.expect_download() as started:
        link.click()
    assert started.value.suggested_filename == f"{run.run_id}-step-10-model.zip"
    with zipfile.ZipFile(Path(started.value.path())) as archive:
        assert f"{run.run_id}-step-10-model/predict.py" in archive.namelist()
    with page.expect_download() as started:
        page.get_by_role("link", name="Report", exact=True).click()
    report = Path(started.value.path()).read_text()
    assert "<h4>Events</h4>" in report and f"{run.run_id}/events.jsonl" in report
    with page.expect_download() as started:
        page.get_by_role("link", name="Run as a zip").click()
    assert started.value.suggested_filename == f"{run.run_id}-run.zip"
    with zipfile.ZipFile(Path(started.value.path())) as archive:
        assert f"{run.run_id}/checkpoints/step_10/model.safetensors" in archive.namelist()
    card.locator("summary").click()
    expect(card.locator("code")).to_contain_text('torch.export.load("model.pt2")')
    assert_usable_on_a_phone(page, ".ddp-take-home")
