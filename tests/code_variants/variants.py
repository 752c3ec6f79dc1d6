# ruff: noqa: E501 - pieces of code in their own lines
"""Answers to the lessons in code, as changes of their solutions.

They are mistakes that the lesson's first script does not have, and correct answers that look different.
`expected` of a wrong one is the code of the finding.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp_gui.learn.code_lesson import CodeLesson

PASSED, WRONG = "passed", "wrong"
Edit = tuple[str, str]


@dataclass(frozen=True)
class Variant:
    """One answer.

    Attributes:
        expected: `PASSED`, or the code of the finding.
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


NET = "nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))"
BACKWARD = "        loss.backward()\n"
SCHEDULE = "    scheduler.step()\n"
SET = "    sampler.set_epoch(epoch)\n"
BY_HAND = """    order = torch.randperm(512, generator=torch.Generator().manual_seed(epoch))[rank::world_size]
    for part in order.split(32):
        x, y = inputs[part], labels[part]
"""
LOAD = 'restored.load_state_dict(torch.load("checkpoint.pt"))\n'
MODEL = "model = DDP(restored)\n"
INSIDE = """        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / 4
            loss.backward()
"""

OF_LESSON = {
    "two-ranks": [
        Variant("a group, but no DDP", "not_averaged", ((f"model = DDP({NET})", f"model = {NET}"),)),
        Variant(
            "the loss times the ranks", "summed", ((BACKWARD, "        (loss * world_size).backward()\n"),)
        ),
    ],
    "shard-the-data": [
        Variant("by hand, without a loader", PASSED, ((SET, ""), ("    for x, y in loader:\n", BY_HAND))),
        Variant(
            "set_epoch of another sampler",
            "same_order",
            (("sampler.set_epoch", "DistributedSampler(data).set_epoch"),),
        ),
    ],
    "save-and-load": [
        Variant("a monitored barrier", PASSED, (("dist.barrier()", "dist.monitored_barrier()"),)),
        Variant(
            "rank 0 loads after DDP",
            "not_restored",
            ((LOAD, ""), (MODEL, MODEL + "if rank == 0:\n    " + LOAD.replace("restored.", "model.module."))),
        ),
    ],
    "the-loss-you-print": [
        Variant(
            "mean of the accuracies",
            "other_accuracy",
            (
                ("    dist.all_reduce(counts)\n", ""),
                (
                    "    return (counts[0] / counts[1]).item()",
                    "    share = counts[0] / counts[1]\n    dist.all_reduce(share)\n    return (share / world_size).item()",
                ),
            ),
        ),
        Variant(
            "padded validation",
            "padded",
            (
                (
                    "DataLoader(own_part, batch_size=32)",
                    "DataLoader(own_part.dataset, batch_size=32, sampler=DistributedSampler(own_part.dataset, shuffle=False))",
                ),
            ),
        ),
    ],
    "accumulate": [
        Variant(
            "no_sync around backward alone",
            "wasted",
            (
                (
                    INSIDE,
                    "        loss = nn.functional.cross_entropy(model(x), y) / 4\n        with contextlib.nullcontext() if is_last else model.no_sync():\n            loss.backward()\n",
                ),
            ),
        ),
    ],
    "find-the-hang": [Variant("a schedule for each rank", "schedule", ((SCHEDULE, SCHEDULE * 2),))],
}
