# ruff: noqa: E501 - pieces of code in their own lines
"""Answers to the lessons in code, as changes of their solutions: one for each finding, and correct ones of other styles.

`EXPECTED` of a wrong one is the code of the finding; several are separated by spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_gui.learn.code_lesson import CodeLesson

PASSED, WRONG = "passed", "wrong"
Edit = tuple[str, str]


@dataclass(frozen=True)
class Variant:
    """One answer.

    Attributes:
        expected: `PASSED`, or the codes of the finding, one of which must be found.
    """

    name: str
    expected: str
    edits: tuple[Edit, ...]

    def script(self, lesson: CodeLesson) -> str:
        """Return its code."""
        text = lesson.solution
        for old, new in self.edits:
            assert old in text, f"{lesson.name}: {self.name}: {old!r} is not in the solution"
            text = text.replace(old, new)
        return text


def of(lesson: str) -> list[Variant]:
    """Return the variants of a lesson."""
    return [Variant(name, expected, tuple(edits)) for name, expected, edits in _ALL[lesson]]


NET = "nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))"
DDP = f"model = DDP({NET})"
PLAIN = f"model = {NET}"
STEP = "        optimizer.step()\n"
BACKWARD = "        loss.backward()\n"
SCHEDULE = "    scheduler.step()\n"
SAMPLER = "sampler = DistributedSampler(data)\n"
LOADER = "loader = DataLoader(data, batch_size=32, sampler=sampler)\n"
SET = "    sampler.set_epoch(epoch)\n"
LOSS = "loss = nn.functional.cross_entropy(model(x), y)"
AVERAGE = "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= world_size\n"

_TWO_RANKS = [
    ("averaged by hand", PASSED, [(DDP, PLAIN), (BACKWARD, BACKWARD + AVERAGE)]),
    ("DDP by-passed", "not_averaged", [("model(x)", "model.module(x)")]),
    ("the loss times the ranks", "summed", [(BACKWARD, "        (loss * world_size).backward()\n")]),
    ("averaged after the step", "not_averaged", [(DDP, PLAIN), (STEP, STEP + AVERAGE)]),
    ("divided once more", "divided_twice", [(BACKWARD, "        (loss / world_size).backward()\n")]),
    ("only rank 0 trains", "idle hang disagree error", [("\nfor epoch", "\nif rank == 0:\n  for epoch"), ("    for x", "    for x")]),
]  # fmt: skip

BY_HAND = """    order = torch.randperm(512, generator=torch.Generator().manual_seed(epoch))[rank::world_size]
    for part in order.split(32):
        x, y = inputs[part], labels[part]
"""
_SHARDS = [
    ("by hand, without a loader", PASSED, [(SET, ""), ("    for x, y in loader:\n", BY_HAND)]),
    ("half of each batch", PASSED, [
        (SAMPLER, ""), (LOADER, "loader = DataLoader(data, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(1))\n"),
        (SET, ""), (LOSS, "loss = nn.functional.cross_entropy(model(x[rank::world_size]), y[rank::world_size])"),
    ]),
    ("no sampler, shuffled", "same_samples", [("sampler=sampler", "shuffle=True"), (SET, "")]),
    ("other data on each rank", "other_samples", [("manual_seed(0)", "manual_seed(rank)")]),
    ("set_epoch of another sampler", "same_order", [("sampler.set_epoch", "DistributedSampler(data).set_epoch")]),
    ("a half of the data only", "samples_missing", [
        ("DistributedSampler(data)", "DistributedSampler(torch.utils.data.Subset(data, range(256)))"),
    ]),
    ("one batch less on rank 1", "hang disagree error uneven", [
        ("    for x, y in loader:\n", "    for number, (x, y) in enumerate(loader):\n        if number == 7 and rank == 1:\n            break\n"),
    ]),
]  # fmt: skip

SAVE = 'if rank == 0:\n    torch.save(model.module.state_dict(), "checkpoint.pt")\n'
BARRIER = "dist.barrier()  # no rank reads the file before it is complete\n"
LOAD = 'restored.load_state_dict(torch.load("checkpoint.pt"))\n'
MODEL = "model = DDP(restored)\n"
_SAVE_AND_LOAD = [
    ("a monitored barrier", PASSED, [("dist.barrier()", "dist.monitored_barrier()")]),
    ("written, then renamed", PASSED, [
        ("import torch\n", "import os\n\nimport torch\n"),
        (SAVE, 'if rank == 0:\n    torch.save(model.module.state_dict(), "new.pt")\n    os.replace("new.pt", "checkpoint.pt")\n'),
    ]),
    ("all ranks save one file", "same_file", [("if rank == 0:\n    torch", "torch")]),
    ("each rank its own file", "all_save", [
        ("if rank == 0:\n    torch", "torch"), ('"checkpoint.pt"', 'f"checkpoint_{rank}.pt"'),
    ]),
    ("nobody saves", "not_saved not_loaded error", [("rank == 0", "rank == 7"), (LOAD, "")]),
    ("nobody loads", "not_loaded", [(LOAD, "")]),
    ("rank 0 loads after DDP", "not_restored", [
        (LOAD, ""), (MODEL, MODEL + "if rank == 0:\n    " + LOAD.replace("restored.", "model.module.")),
    ]),
    ("no barrier", "too_early error", [(BARRIER, "")]),
]  # fmt: skip

MEAN = """    mean = loss.detach().clone()
    dist.all_reduce(mean)
    mean /= world_size
"""
COUNTS = "    dist.all_reduce(counts)\n"
_EVALUATION_WRONG = [
    ("accuracy of its own part", "own_accuracy", [(COUNTS, "")]),
    ("mean of the accuracies", "other_accuracy", [
        (COUNTS, ""),
        ("    return (counts[0] / counts[1]).item()", "    share = counts[0] / counts[1]\n    dist.all_reduce(share)\n    return (share / world_size).item()"),
    ]),
    ("padded validation", "padded", [
        ("DataLoader(own_part, batch_size=32)", "DataLoader(own_part.dataset, batch_size=32, sampler=DistributedSampler(own_part.dataset, shuffle=False))"),
    ]),
    ("validation without the last samples", "padded", [("range(rank, 101, world_size)", "range(rank * 50, rank * 50 + 50)")]),
]  # fmt: skip
_LOSS = [
    ("gathered", PASSED, [(MEAN, "    parts = [torch.zeros(()) for _ in range(world_size)]\n    dist.all_gather(parts, loss.detach())\n    mean = sum(parts) / world_size\n")]),
    ("too few decimals", "unclear", [(".4f} accuracy", ".1f} accuracy")]),
    ("with logging", PASSED, [
        ("import torch\n", "import logging\n\nimport torch\n"), ("print(", "logging.warning("),
    ]),
    ("its own loss", "own_loss", [(MEAN, "    mean = loss\n")]),
    ("the sum", "summed_loss", [("    mean /= world_size\n", "")]),
    ("the largest", "own_loss other_loss", [("dist.all_reduce(mean)\n    mean /= world_size", "dist.all_reduce(mean, op=dist.ReduceOp.MAX)")]),
    ("nothing printed", "nothing_shown", [("loss {mean.item():.4f} ", "")]),
    *_EVALUATION_WRONG,
]  # fmt: skip

INSIDE = """        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / 4
            loss.backward()
"""
OUTSIDE = """        loss = nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
"""
HAND = """            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world_size
            optimizer.step()
"""
IF_ELSE = """        if is_last:
            (nn.functional.cross_entropy(model(x), y) / 4).backward()
        else:
            with model.no_sync():
                (nn.functional.cross_entropy(model(x), y) / 4).backward()
"""
_ACCUMULATE = [
    ("if and else", PASSED, [(INSIDE, IF_ELSE)]),
    ("by hand", PASSED, [(DDP, PLAIN), (INSIDE, OUTSIDE), ("            optimizer.step()\n", HAND)]),
    ("no_sync around backward alone", "wasted", [
        (INSIDE, "        loss = nn.functional.cross_entropy(model(x), y) / 4\n        with contextlib.nullcontext() if is_last else model.no_sync():\n            loss.backward()\n"),
    ]),
    ("all-reduced in the first pass", "replicas_differ", [("is_last else", "number % 4 == 1 else")]),
    ("accumulation removed", "not_accumulated", [("number % 4 == 0", "True"), (" / 4\n", "\n")]),
    ("cleared in each pass", "other_gradient divided_twice", [
        ("        is_last =", "        optimizer.zero_grad()\n        is_last ="),
    ]),
    ("not divided", "not_divided", [(" / 4\n", "\n")]),
]  # fmt: skip

SAVED = """def save(model, path):
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()  # no rank reads the file before it is complete

"""
CALL = '    save(model, f"epoch_{epoch}.pt")\n'
ALONE = '    if rank == 0:\n        save(model, f"epoch_{epoch}.pt")\n'
_HANG = [
    ("early return after the barrier", PASSED, [(SAVED, SAVED.replace("    if rank == 0:\n        torch.save(model.module.state_dict(), path)\n", "    if rank == 0:\n        torch.save(model.state_dict(), path)\n"))]),
    ("saved by rank 0 alone", "hang disagree error", [(CALL, ALONE)]),
    ("rank 0 breaks early", "hang disagree error uneven", [(CALL, CALL + "    if rank == 0 and epoch == 2:\n        break\n")]),
    ("nothing is saved any more", "not_saved", [(CALL, "")]),
    ("a schedule for each rank", "schedule", [(SCHEDULE, SCHEDULE * 2)]),
]  # fmt: skip

_ALL: dict[str, Sequence[tuple[str, str, Sequence[Edit]]]] = {
    "two-ranks": _TWO_RANKS,
    "shard-the-data": _SHARDS,
    "save-and-load": _SAVE_AND_LOAD,
    "the-loss-you-print": _LOSS,
    "accumulate": _ACCUMULATE,
    "find-the-hang": _HANG,
}

# For CI, besides the first scripts and the solutions: mistakes that those do not have, and a correct answer that
# looks different.
SUBSET = {
    "two-ranks": ("averaged after the step", "the loss times the ranks"),
    "shard-the-data": ("by hand, without a loader", "set_epoch of another sampler"),
    "save-and-load": ("rank 0 loads after DDP", "a monitored barrier"),
    "the-loss-you-print": (
        "padded validation",
        "mean of the accuracies",
        "validation without the last samples",
    ),
    "accumulate": ("no_sync around backward alone",),
    "find-the-hang": ("a schedule for each rank", "nothing is saved any more"),
}
