# ruff: noqa: E501 - pieces of code in their own lines
"""Answers to the lessons in code, as changes of their solutions: right ones in other forms, and each finding.

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


def variants_of(lesson: str) -> list[Variant]:
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
FLAT = """        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        flat /= world_size
        start = 0
        for p in model.parameters():
            p.grad.copy_(flat[start : start + p.numel()].view_as(p))
            start += p.numel()
"""
CLOSURE = f"""        def closure():
            {LOSS}
            optimizer.zero_grad()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
"""

_TWO_RANKS = [
    ("averaged by hand, in one piece", PASSED, [(DDP, PLAIN), (BACKWARD, BACKWARD + FLAT)]),
    ("rank and size by hand", PASSED, [
        ("import torch\n", "import os\nimport torch\n"),
        ('"gloo")', '"gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))'),
    ]),
    ("a closure", PASSED, [
        (f"        {LOSS}\n        optimizer.zero_grad()\n{BACKWARD}{STEP}", CLOSURE),
    ]),
    ("only rank 0 averages", "hang disagree error", [
        (DDP, PLAIN), (BACKWARD, BACKWARD + "        if rank == 0:\n" + AVERAGE.replace("    ", "        ", 1).replace("\n            ", "\n                ")),
    ]),
    ("the loss times the ranks", "summed", [(BACKWARD, "        (loss * world_size).backward()\n")]),
    ("averaged after the step", "not_averaged", [(DDP, PLAIN), (STEP, STEP + AVERAGE)]),
    ("divided once more", "divided_twice", [(BACKWARD, "        (loss / world_size).backward()\n")]),
    ("only rank 0 trains", "idle hang disagree error", [("\nfor epoch", "\nif rank == 0:\n  for epoch"), ("    for x", "    for x")]),
]  # fmt: skip

OWN_SAMPLER = """class Share(torch.utils.data.Sampler):
    epoch = 0

    def __iter__(self):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.epoch))
        return iter(order[rank::world_size].tolist())

    def __len__(self):
        return len(data) // world_size


sampler = Share()
"""
BY_HAND = """    order = torch.randperm(512, generator=torch.Generator().manual_seed(epoch))[rank::world_size]
    for part in order.split(32):
        x, y = inputs[part], labels[part]
"""
_SHARDS = [
    ("a sampler of one's own", PASSED, [(SAMPLER, OWN_SAMPLER), (SET, "    sampler.epoch = epoch\n")]),
    ("by hand, without a loader", PASSED, [(SET, ""), ("    for x, y in loader:\n", BY_HAND)]),
    ("half of each batch", PASSED, [
        (SAMPLER, ""), (LOADER, "loader = DataLoader(data, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(1))\n"),
        (SET, ""), (LOSS, "loss = nn.functional.cross_entropy(model(x[rank::world_size]), y[rank::world_size])"),
    ]),
    ("no sampler, shuffled", "same_samples", [("sampler=sampler", "shuffle=True"), (SET, "")]),
    ("other data on each rank", "other_samples", [("manual_seed(0)", "manual_seed(rank)")]),
    ("set_epoch of another sampler", "same_order", [("sampler.set_epoch", "DistributedSampler(data).set_epoch")]),
    ("set_epoch after the pass", PASSED, [(SET, ""), (SCHEDULE, SCHEDULE + "    sampler.set_epoch(epoch + 1)\n")]),
    ("a half of the data only", "samples_missing", [
        ("DistributedSampler(data)", "DistributedSampler(torch.utils.data.Subset(data, range(256)))"),
    ]),
]  # fmt: skip

BARRIER = "dist.barrier()  # no rank reads the file before it is complete\n"
LOAD = 'restored.load_state_dict(torch.load("checkpoint.pt"))\n'
MODEL = "model = DDP(restored)\n"
_SAVE_AND_LOAD = [
    ("into the wrapped model", PASSED, [(LOAD, ""), (MODEL, MODEL + LOAD.replace("restored.", "model.module."))]),
    ("a message as the barrier", PASSED, [
        (BARRIER, "flag = torch.ones(1)\ndist.send(flag, 1) if rank == 0 else dist.recv(flag, 0)\n"),
    ]),
    ("a monitored barrier", PASSED, [("dist.barrier()", "dist.monitored_barrier()")]),
    ("loaded on rank 0, broadcast", PASSED, [
        (LOAD, "if rank == 0:\n    " + LOAD + "for each in restored.state_dict().values():\n    dist.broadcast(each, src=0)\n"),
    ]),
    ("all ranks save one file", "same_file", [("if rank == 0:\n    torch", "torch")]),
    ("each rank its own file", "all_save", [
        ("if rank == 0:\n    torch", "torch"), ('"checkpoint.pt"', 'f"checkpoint_{rank}.pt"'),
    ]),
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
EPOCH = """    total = torch.zeros(())
    for x, y in loader:
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
]  # fmt: skip
_LOSS = [
    ("mean of the epoch", PASSED, [
        ("    for x, y in loader:\n", EPOCH), (STEP, STEP + "        total += loss.detach()\n"),
        ("mean = loss.detach().clone()", "mean = total / len(loader)"),
    ]),
    ("gathered", PASSED, [(MEAN, "    parts = [torch.zeros(()) for _ in range(world_size)]\n    dist.all_gather(parts, loss.detach())\n    mean = sum(parts) / world_size\n")]),
    ("too few decimals", "unclear", [(".4f} accuracy", ".1f} accuracy")]),
    ("in another form", PASSED, [("epoch {epoch}: loss {mean.item():.4f}", "[{epoch}/4] train_loss={mean.item():.5f}")]),
    ("its own loss", "own_loss", [(MEAN, "    mean = loss\n")]),
    ("the sum", "summed_loss", [("    mean /= world_size\n", "")]),
    ("divided before, and not reduced", "other_loss", [(MEAN, "    mean = loss.detach() / world_size\n")]),
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
HOOK = """

def average(*_):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world_size


optimizer.register_step_pre_hook(average)
"""
GROUPS = """    batches = list(loader)
    for start in range(0, len(batches), 4):
        *first, (x, y) = batches[start : start + 4]
        with model.no_sync():
            for each, label in first:
                (nn.functional.cross_entropy(model(each), label) / 4).backward()
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_BODY = f"""    for number, (x, y) in enumerate(loader, start=1):
        is_last = number % 4 == 0
{INSIDE}        if is_last:
            optimizer.step()
            optimizer.zero_grad()
"""
_ACCUMULATE = [
    ("groups of batches", PASSED, [(_BODY, GROUPS)]),
    ("by hand, in a hook of the optimizer", PASSED, [
        (DDP, PLAIN), (INSIDE, OUTSIDE), ("\nfor epoch", HOOK + "\nfor epoch"),
    ]),
    ("gradients divided at the end", PASSED, [
        (" / 4\n", "\n"), ("            optimizer.step()\n", "            for p in model.parameters():\n                p.grad /= 4\n            optimizer.step()\n"),
    ]),
    ("no_sync around backward alone", "wasted", [
        (INSIDE, "        loss = nn.functional.cross_entropy(model(x), y) / 4\n        with contextlib.nullcontext() if is_last else model.no_sync():\n            loss.backward()\n"),
    ]),
    ("no_sync in the last pass", "replicas_differ wasted not_averaged", [("if is_last else", "if not is_last else")]),
    ("accumulation removed", "not_accumulated", [("number % 4 == 0", "True"), (" / 4\n", "\n")]),
    ("cleared in each pass", "other_gradient divided_twice", [
        ("        is_last =", "        optimizer.zero_grad()\n        is_last ="),
    ]),
    ("not divided", "not_divided", [(" / 4\n", "\n")]),
]  # fmt: skip

CALL = '    save(model, f"epoch_{epoch}.pt")\n'
ALONE = '    if rank == 0:\n        save(model, f"epoch_{epoch}.pt")\n'
_HANG = [
    ("the barrier in the loop", PASSED, [
        ("    dist.barrier()  # no rank reads the file before it is complete\n", ""), (CALL, CALL + "    dist.barrier()\n"),
    ]),
    ("an all-reduce as the barrier", PASSED, [("dist.barrier()", "dist.all_reduce(torch.zeros(1))")]),
    ("no collective in save, called by rank 0", PASSED, [
        ("    dist.barrier()  # no rank reads the file before it is complete\n", ""), (CALL, ALONE),
    ]),
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
    "the-loss-you-print": ("padded validation", "mean of the accuracies"),
    "accumulate": ("no_sync around backward alone",),
    "find-the-hang": ("a schedule for each rank", "nothing is saved any more"),
}
