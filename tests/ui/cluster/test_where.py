"""Choosing where a run trains in the form, with a real cluster that has two partitions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import run_to_end
from tests.ui.conftest import ServePage, assert_accessible
from trainers.contract.rundir import RunDirectory

SITE = """
[slurm.partition]
default = "gpu"
[slurm.account]
fixed = "physics"
[slurm.qos]
hidden = true
[slurm.time_limit]
default = "00:20:00"
maximum = "01:00:00"
[slurm.extra_lines]
fixed = ["--comment=of-the-site"]
allowed = ["--exclusive", "--nice=100"]
"""
GPU = "gpu: 1 node, 1 idle; 1 of 1 k80 GPUs free; 2 of 2 tesla GPUs free; up to 24 h"
HOSTILE = "a'b\"; $(touch pwned) `x` %j"


@pytest.fixture(autouse=True)
def _its_commands(slurm_with_gpus: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm_with_gpus.environment.items():
        monkeypatch.setenv(name, value)


def field_of(page: Page, name: str) -> Locator:
    return page.locator(f"#field-{name}").locator("input, textarea").first


def fill(page: Page, name: str, value: str) -> None:
    field = field_of(page, name)
    field.fill(value)
    field.blur()


def choose(page: Page, label: str, begins: str) -> None:
    """Choose the first entry of a list that contains the text."""
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option").filter(has_text=begins).first.click()


def test_a_partition_with_gpus_is_chosen_and_what_it_lacks_is_refused(
    slurm_with_gpus: SlurmCluster, serve_page: ServePage, page: Page, tmp_path: Path
) -> None:
    page.goto(serve_page(tmp_path / "runs", "--engine", "slurm").address)
    where, problems, script = page.locator("#where"), page.locator("#problems"), page.locator("#script")
    partition = where.get_by_role("combobox", name="Partition")
    expect(partition).to_have_value("cpu: 1 node, 1 idle; no GPUs; up to 5 min")
    expect(where.locator("#field-gpu_type")).to_be_hidden()
    page.get_by_role("button", name="This job as a script").click()
    expect(script).to_contain_text("--partition=cpu")
    choose(page, "Partition", GPU)
    expect(page.locator(".ddp-machine")).to_have_text(
        "A node of partition gpu has 3 GPUs (k80, tesla) and 4 CPU cores."
    )
    expect(page.locator("#field-nproc_per_node")).to_contain_text("GPUs (up to 3)")
    fill(page, "nproc_per_node", "2")
    choose(page, "GPU type", "tesla: 2 of 2 free")
    expect(script).to_contain_text("--gres=gpu:tesla:2")
    # Requests that exceed the partition are reported before Start.
    fill(page, "nproc_per_node", "3")
    expect(problems).to_contain_text("3 is not possible")
    fill(page, "nproc_per_node", "1")
    fill(page, "time_limit", "2-00:00:00")
    expect(problems).to_contain_text("at most 24 h: the partition's limit")
    fill(page, "time_limit", "10")
    fill(page, "memory_gb", "8")
    expect(problems).to_contain_text("at most 7, the maximum of memory in partition gpu")
    fill(page, "memory_gb", "1")
    page.get_by_role("button", name="Account, QOS").click()
    for name in ("account", "qos"):
        fill(page, name, HOSTILE)
        expect(problems).to_contain_text("a name of letters, digits")
        fill(page, name, "")
        expect(problems).to_be_empty()
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/run?id=*")
    run = RunDirectory(tmp_path / "runs" / page.url.partition("?id=")[2])
    expect(page.locator(".ddp-pill")).to_have_text("running")
    found = slurm_with_gpus.ask("squeue", "--noheader", "--format=%P|%b|%l|%m|%N").strip()
    assert found == "gpu|gres:gpu:tesla:1|10:00|1G|node2"
    assert run.read_config().gpu_type == "tesla"
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    # "Run again with changes" fills in all fields.
    page.get_by_role("link", name="Run again with changes").first.click()
    expect(partition).to_have_value(GPU)
    expect(field_of(page, "time_limit")).to_have_value("10")
    slurm_with_gpus.wait_until_idle()


def test_the_site_file_fills_in_hides_and_fixes(serve_page: ServePage, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(SITE)
    server = serve_page(tmp_path / "runs", "--engine", "slurm", "--site", str(file))
    page.goto(server.address)
    partition = page.get_by_role("combobox", name="Partition")
    expect(partition).to_have_value(GPU)
    expect(field_of(page, "time_limit")).to_have_value("00:20:00")
    expect(page.locator("#field-account, #field-qos")).to_have_count(0)
    page.get_by_role("button", name="Further options").click()
    page.get_by_label("--nice=100").check()
    page.get_by_role("button", name="This job as a script").click()
    script = page.locator("#script")
    for line in ("time=00:20:00", "account=physics", "comment=of-the-site", "nice=100"):
        expect(script).to_contain_text(f"#SBATCH --{line}")
    expect(script).not_to_contain_text("exclusive")
    assert_accessible(page)
    fill(page, "time_limit", "2:00:00")
    expect(page.locator("#problems")).to_contain_text("at most 60 min: the administrator's limit")


def test_a_wrong_site_file_is_refused_in_words_before_anything_is_served(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[slurm.partitions]\n")
    command = [sys.executable, "app.py", "--no-browser", "--runs-dir", str(tmp_path / "runs")]
    code, said = run_to_end([*command, "--engine", "slurm", "--site", str(file)], 120.0)
    assert code != 0 and f"{file} has 'partitions' in [slurm]; allowed: partition, " in said
    code, said = run_to_end([*command, "--site", str(file)], 120.0)
    assert code != 0 and "--site describes a cluster" in said
