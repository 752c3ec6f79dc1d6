"""Tests of the analysis of a script's text, without running it."""

from __future__ import annotations

import textwrap

import pytest

from ddp_gui.script import completion, reader
from tests.harness import REPOSITORY

SCRIPTS = REPOSITORY / "tests" / "scripts"


def read_script(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "start", "why", "num_ranks"),
    [
        ("plain_ddp", "torchrun", "joins the ranks that torchrun starts", None),
        ("spawned", "python", "starts the ranks (mp.spawn)", 2),
        ("single", "python", "has no process group", 1),
        ("gpu_whole", "torchrun", "joins the ranks", 2),
        ("fsdp2", "torchrun", "joins the ranks", None),
    ],
)
def test_how_a_script_starts_its_ranks(name: str, start: str, why: str, num_ranks: int | None) -> None:
    reading = reader.read(read_script(name))
    assert (reading.start, reading.num_ranks) == (start, num_ranks)
    assert why in reading.why and reading.why.count(".") <= 2


def test_a_script_whose_group_another_file_begins_is_started_with_torchrun() -> None:
    reading = reader.read("import utils\nutils.init()\nmodel = nn.parallel.DistributedDataParallel(net)\n")
    assert (reading.start, reading.num_ranks) == ("torchrun", None) and "line 3" in reading.why


@pytest.mark.parametrize("name", [path.stem for path in sorted(SCRIPTS.glob("[a-z]*.py"))])
def test_nothing_is_missing_in_a_complete_script(name: str) -> None:
    reading = reader.read(read_script(name))
    assert reading.missing == () and reading.uncalled is None
    assert completion.complete(read_script(name)) is None


def test_click_options_and_positional_arguments_become_fields() -> None:
    text = """
    import argparse, click
    @click.command()
    @click.option("--size", type=click.Choice(["s", "m"]), default="s")
    @click.option("--fast/--slow", default=False)
    @click.option("--width", default=64, help="of a layer")
    @click.argument("folder")
    def main(size, fast, width, folder): ...
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="where it is")
    parser.add_argument("-n", "--num-steps", type=int, required=True)
    parser.add_argument("out", nargs="?", default="here")
    parser.add_argument("--milestones", nargs="+", type=int, default=[10, 20])
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    """
    options = {option.flag: option for option in reader.read(textwrap.dedent(text)).options}
    assert options["--size"].choices == ("s", "m") and options["--fast"].kind == "switch"
    assert options["--width"].kind == "whole" and options["--width"].default == 64
    assert options["folder"].is_positional and options["data"].is_required
    assert not options["out"].is_required and options["--no-amp"].kind == "switch"
    assert options["--milestones"].is_list and options["--milestones"].default == "10 20"
    assert options["--num-steps"].is_required and options["--num-steps"].kind == "whole"


@pytest.mark.parametrize("value", ['int(os.environ["LOCAL_RANK"])', "rank % 8", "dist.get_rank()"])
def test_a_rank_that_is_assigned_selects_a_gpu_too(value: str) -> None:
    assert [mark.line for mark in reader.read(f"device_id = {value}\nmodel.to(device_id)\n").marks] == [2]
    assert reader.read('gpu = "cpu"\nmodel.to(gpu)\n').marks == ()


FRAGMENTS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import os

def setup(rank, world_size):
    os.environ["MASTER_PORT"] = "29511"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)

def cleanup():
    dist.destroy_process_group()

from torch.utils.data import DataLoader, DistributedSampler

loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset, world_size, rank))
model = DDP(BigNetwork().to(rank), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(epochs):
    for x, y in loader:
        loss = criterion(model(x.to(rank)), y.to(rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
DICTIONARIES = """
import torch

def train(local_rank: int, world_size: int):
    model = TextClassifier().cuda(local_rank)
    for batch in DataLoader(dataset, batch_size=8):
        batch = {k: v.cuda(local_rank) for k, v in batch.items()}
        loss = model(**batch).loss
        loss.backward()
"""
ONE_GPU = """
get_ipython().run_line_magic("matplotlib", "inline")
model = TextClassifier().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=2e-5)
for batch in DataLoader(dataset, batch_size=8, shuffle=True):
    loss = model(batch).loss
    loss.backward(); opt.step(); opt.zero_grad()
"""
LISTINGS = {"fragments": FRAGMENTS, "dictionaries": DICTIONARIES, "one_gpu": ONE_GPU}


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_is_completed_and_each_added_line_is_marked(name: str) -> None:
    completed = completion.complete(LISTINGS[name])
    assert completed is not None and completed.left == ()
    lines = completed.text.splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith(completion.ADDED)]
    assert set(marked) <= set(completed.added)
    assert all(number in marked or lines[number - 1] == "" for number in completed.added)
    kept = [line for number, line in enumerate(lines, 1) if number not in completed.added]
    assert kept == LISTINGS[name].rstrip("\n").splitlines(), "no line of the listing is changed"
    reading = reader.read(completed.text)
    assert reading.problem is None and reading.missing == () and reading.uncalled is None
    assert completed.sentences
    if name == "fragments":
        calls = ('setup(int(os.environ["RANK"])', "loader = DataLoader", "cleanup()  #")
        assert sorted(calls, key=completed.text.index) == list(calls), "those that are left out, in order"
