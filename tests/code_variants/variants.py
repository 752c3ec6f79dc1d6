# ruff: noqa: E501 - pieces of code in their own lines
"""Answers to the lessons in code, as changes of their solutions: ten that are right and ten that are wrong.

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
OWN_CLASS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


"""

_TWO_RANKS = [
    ("a module of one's own", PASSED, [(DDP, OWN_CLASS + "model = DDP(Net())")]),
    ("averaged by hand", PASSED, [(DDP, PLAIN), (BACKWARD, BACKWARD + AVERAGE)]),
    ("averaged by hand, in one piece", PASSED, [(DDP, PLAIN), (BACKWARD, BACKWARD + FLAT)]),
    ("rank and size by hand", PASSED, [
        ("import torch\n", "import os\nimport torch\n"),
        ('"gloo")', '"gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))'),
    ]),
    ("its own part of the data, too", PASSED, [
        ("DataLoader, TensorDataset", "DataLoader, DistributedSampler, TensorDataset"),
        ("shuffle=True)", "sampler=DistributedSampler(data))"),
    ]),
    ("another seed on each rank for the order", PASSED, [
        ("loader = ", "torch.manual_seed(rank)\nloader = "),
    ]),
    ("Adam", PASSED, [("torch.optim.SGD(model.parameters(), lr=0.1)", "torch.optim.Adam(model.parameters(), lr=0.01)")]),
    ("a scaled learning rate", PASSED, [("lr=0.1", "lr=0.1 * world_size")]),
    ("DDP with options", PASSED, [(f"DDP({NET})", f"DDP({NET}, bucket_cap_mb=1, gradient_as_bucket_view=True)")]),
    ("a closure", PASSED, [
        (f"        {LOSS}\n        optimizer.zero_grad()\n{BACKWARD}{STEP}", CLOSURE),
    ]),
    ("the loss as a module", PASSED, [
        ("\nfor epoch", "\ncriterion = nn.CrossEntropyLoss()\nfor epoch"),
        ("nn.functional.cross_entropy(", "criterion("),
    ]),
    ("a group, but no DDP", "not_averaged", [(DDP, PLAIN)]),
    ("no DDP, other orders", "not_averaged replicas_differ", [
        (DDP, PLAIN), ("loader = ", "torch.manual_seed(rank)\nloader = "),
    ]),
    ("DDP by-passed", "not_averaged", [("model(x)", "model.module(x)")]),
    ("all in no_sync", "not_averaged", [
        (f"        {LOSS}\n", f"        with model.no_sync():\n            {LOSS}\n"),
    ]),
    ("only rank 0 averages", "hang disagree error", [
        (DDP, PLAIN), (BACKWARD, BACKWARD + "        if rank == 0:\n" + AVERAGE.replace("    ", "        ", 1).replace("\n            ", "\n                ")),
    ]),
    ("summed by hand", "summed", [
        (DDP, PLAIN), (BACKWARD, BACKWARD + AVERAGE.replace("            p.grad /= world_size\n", "")),
    ]),
    ("the loss times the ranks", "summed", [(BACKWARD, "        (loss * world_size).backward()\n")]),
    ("averaged after the step", "not_averaged", [(DDP, PLAIN), (STEP, STEP + AVERAGE)]),
    ("divided once more", "divided_twice", [(BACKWARD, "        (loss / world_size).backward()\n")]),
    ("a schedule for each rank", "schedule", [
        (SCHEDULE, "    for _ in range(world_size):\n        scheduler.step()\n"),
    ]),
    ("a schedule of a lambda, too fast", "schedule", [
        ("ExponentialLR(optimizer, gamma=0.8)", "LambdaLR(optimizer, lambda e: 0.8 ** (e * world_size))"),
    ]),
    ("only rank 0 trains", "idle hang disagree error", [("\nfor epoch", "\nif rank == 0:\n  for epoch"), ("    for x", "    for x")]),
    ("DDP after the optimizer's own network", "not_averaged replicas_differ", [
        ("model.parameters()", f"(other := {NET}).parameters()"), ("model(x)", "other(x)"),
    ]),
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
    ("a new loader in each epoch", PASSED, [
        (SET, SET + "    loader = DataLoader(data, batch_size=32, sampler=sampler)\n"),
    ]),
    ("a fixed part, shuffled", PASSED, [
        ("DistributedSampler, TensorDataset", "Subset, TensorDataset"), (SAMPLER, ""),
        ("(data, batch_size=32, sampler=sampler)", "(Subset(data, range(rank, 512, world_size)), batch_size=32, shuffle=True)"),
        (SET, ""),
    ]),
    ("another seed of the sampler", PASSED, [("DistributedSampler(data)", "DistributedSampler(data, seed=7)")]),
    ("rank and size given", PASSED, [
        ("DistributedSampler(data)", "DistributedSampler(data, num_replicas=world_size, rank=rank, drop_last=True)"),
    ]),
    ("half of each batch", PASSED, [
        (SAMPLER, ""), (LOADER, "loader = DataLoader(data, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(1))\n"),
        (SET, ""), (LOSS, "loss = nn.functional.cross_entropy(model(x[rank::world_size]), y[rank::world_size])"),
    ]),
    ("a batch sampler", PASSED, [
        ("DataLoader(data, batch_size=32, sampler=sampler)", "DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(sampler, 32, False))"),
    ]),
    ("the batch as a keyword", PASSED, [
        (DDP, OWN_CLASS + "model = DDP(Net())"), ("model(x)", "model(x=x)"),
    ]),
    ("the epoch shifted", PASSED, [("set_epoch(epoch)", "set_epoch(epoch + 10)")]),
    ("set_epoch by the loader", PASSED, [("sampler.set_epoch", "loader.sampler.set_epoch")]),
    ("larger batches", PASSED, [("batch_size=32", "batch_size=64")]),
    ("no sampler, shuffled", "same_samples", [("sampler=sampler", "shuffle=True"), (SET, "")]),
    ("no sampler, other seeds", "same_samples", [
        ("sampler=sampler", "shuffle=True"), (SET, ""), (SAMPLER, SAMPLER + "torch.manual_seed(rank)\n"),
    ]),
    ("other data on each rank", "other_samples", [("manual_seed(0)", "manual_seed(rank)")]),
    ("a sampler that no loader uses", "same_samples", [("sampler=sampler", "shuffle=True")]),
    ("the sampler of one rank", "same_samples", [
        ("DistributedSampler(data)", "DistributedSampler(data, num_replicas=2, rank=0)"),
    ]),
    ("shards with other seeds", "same_samples", [("DistributedSampler(data)", "DistributedSampler(data, seed=rank)")]),
    ("random samples", "same_samples", [
        ("DistributedSampler(data)", "torch.utils.data.RandomSampler(data, num_samples=256, generator=torch.Generator().manual_seed(rank))"),
        (SET, ""),
    ]),
    ("no set_epoch", "same_order", [(SET, "")]),
    ("set_epoch with a constant", "same_order", [("set_epoch(epoch)", "set_epoch(0)")]),
    ("set_epoch of another sampler", "same_order", [("sampler.set_epoch", "DistributedSampler(data).set_epoch")]),
    ("set_epoch after the pass", PASSED, [(SET, ""), (SCHEDULE, SCHEDULE + "    sampler.set_epoch(epoch + 1)\n")]),
    ("not shuffled", "same_order", [("DistributedSampler(data)", "DistributedSampler(data, shuffle=False)")]),
    ("a fixed part, in order", "same_order", [
        ("DistributedSampler, TensorDataset", "Subset, TensorDataset"), (SAMPLER, ""),
        ("(data, batch_size=32, sampler=sampler)", "(Subset(data, range(rank, 512, world_size)), batch_size=32)"),
        (SET, ""),
    ]),
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
    ("into the wrapped model", PASSED, [(LOAD, ""), (MODEL, MODEL + LOAD.replace("restored.", "model.module."))]),
    ("the wrapped state", PASSED, [
        ("model.module.state_dict()", "model.state_dict()"), (LOAD, ""),
        (MODEL, MODEL + LOAD.replace("restored.", "model.")),
    ]),
    ("a dictionary with more", PASSED, [
        ("model.module.state_dict()", '{"model": model.module.state_dict(), "epoch": 2}'),
        ('torch.load("checkpoint.pt")', 'torch.load("checkpoint.pt")["model"]'),
    ]),
    ("rank 1 saves", PASSED, [("if rank == 0:", "if rank == world_size - 1:")]),
    ("an all-reduce as the barrier", PASSED, [(BARRIER, "dist.all_reduce(torch.zeros(1))\n")]),
    ("a message as the barrier", PASSED, [
        (BARRIER, "flag = torch.ones(1)\ndist.send(flag, 1) if rank == 0 else dist.recv(flag, 0)\n"),
    ]),
    ("a monitored barrier", PASSED, [("dist.barrier()", "dist.monitored_barrier()")]),
    ("the barrier before loading", PASSED, [(BARRIER, ""), ("restored = build()\n", "restored = build()\ndist.barrier()\n")]),
    ("weights only, mapped", PASSED, [('torch.load("checkpoint.pt")', 'torch.load("checkpoint.pt", map_location="cpu", weights_only=True)')]),
    ("written, then renamed", PASSED, [
        ("import torch\n", "import os\n\nimport torch\n"),
        (SAVE, 'if rank == 0:\n    torch.save(model.module.state_dict(), "new.pt")\n    os.replace("new.pt", "checkpoint.pt")\n'),
    ]),
    ("an open file", PASSED, [
        (SAVE, 'if rank == 0:\n    with open("checkpoint.pt", "wb") as file:\n        torch.save(model.module.state_dict(), file)\n'),
    ]),
    ("loaded on rank 0, sent by DDP", PASSED, [(LOAD, "if rank == 0:\n    " + LOAD)]),
    ("loaded on rank 0, broadcast", PASSED, [
        (LOAD, "if rank == 0:\n    " + LOAD + "for each in restored.state_dict().values():\n    dist.broadcast(each, src=0)\n"),
    ]),
    ("all ranks save one file", "same_file", [("if rank == 0:\n    torch", "torch")]),
    ("all ranks save one open file", "same_file", [
        (SAVE, 'with open("checkpoint.pt", "wb") as file:\n    torch.save(model.module.state_dict(), file)\n'),
    ]),
    ("each rank its own file", "all_save", [
        ("if rank == 0:\n    torch", "torch"), ('"checkpoint.pt"', 'f"checkpoint_{rank}.pt"'),
    ]),
    ("nobody saves", "not_saved not_loaded error", [("rank == 0", "rank == 7"), (LOAD, "")]),
    ("nobody loads", "not_loaded", [(LOAD, "")]),
    ("loaded into a copy", "not_restored", [(LOAD, LOAD.replace("restored.", "build()."))]),
    ("rank 0 loads after DDP", "not_restored", [
        (LOAD, ""), (MODEL, MODEL + "if rank == 0:\n    " + LOAD.replace("restored.", "model.module.")),
    ]),
    ("rank 1 loads after DDP", "not_restored", [
        (LOAD, ""), (MODEL, MODEL + "if rank == 1:\n    " + LOAD.replace("restored.", "model.module.")),
    ]),
    ("no barrier", "too_early error", [(BARRIER, "")]),
    ("the barrier before saving", "too_early error", [(BARRIER, ""), (SAVE, "dist.barrier()\n" + SAVE)]),
    ("the barrier on rank 0 alone", "hang disagree error too_early", [(BARRIER, "    " + BARRIER)]),
    ("saved before training", "not_restored", [
        ("train(model, range(0, 2))\n", ""), (BARRIER, BARRIER + "train(model, range(0, 2))\n"),
    ]),
    ("no DDP after the restart", "not_averaged replicas_differ", [(MODEL, "model = restored\n")]),
    ("no set_epoch", "same_order", [("        sampler.set_epoch(epoch)\n", "")]),
]  # fmt: skip

MEAN = """    mean = loss.detach().clone()
    dist.all_reduce(mean)
    mean /= world_size
"""
EPOCH = """    total = torch.zeros(())
    for x, y in loader:
"""
COUNTS = "    dist.all_reduce(counts)\n"
PART = "range(rank, 101, world_size)"
EVALUATE = "    accuracy = accuracy_of(model)\n"
_EVALUATION_WRONG = [
    ("accuracy of its own part", "own_accuracy", [(COUNTS, "")]),
    ("accuracy of its own part, as a percentage", "own_accuracy", [
        (COUNTS, ""), ("accuracy {accuracy:.4f}", "accuracy {100 * accuracy:.2f}%"),
    ]),
    ("mean of the accuracies", "other_accuracy", [
        (COUNTS, ""),
        ("    return (counts[0] / counts[1]).item()", "    share = counts[0] / counts[1]\n    dist.all_reduce(share)\n    return (share / world_size).item()"),
    ]),
    ("padded validation", "padded", [
        ("DataLoader(own_part, batch_size=32)", "DataLoader(own_part.dataset, batch_size=32, sampler=DistributedSampler(own_part.dataset, shuffle=False))"),
    ]),
    ("validation without the last samples", "padded", [("range(rank, 101, world_size)", "range(rank * 50, rank * 50 + 50)")]),
    ("rank 0 validates alone", "hang disagree error", [(EVALUATE, ""), ("    if rank == 0:\n        print", "    if rank == 0:\n        accuracy = accuracy_of(model)\n        print")]),
]  # fmt: skip
_LOSS = [
    ("mean of the epoch", PASSED, [
        ("    for x, y in loader:\n", EPOCH), (STEP, STEP + "        total += loss.detach()\n"),
        ("mean = loss.detach().clone()", "mean = total / len(loader)"),
    ]),
    ("ReduceOp", PASSED, [
        ("dist.all_reduce(mean)", "dist.reduce(mean, dst=0, op=dist.ReduceOp.SUM)"),
    ]),
    ("gathered", PASSED, [(MEAN, "    parts = [torch.zeros(()) for _ in range(world_size)]\n    dist.all_gather(parts, loss.detach())\n    mean = sum(parts) / world_size\n")]),
    ("gathered objects", PASSED, [(MEAN, "    parts = [None] * world_size\n    dist.all_gather_object(parts, loss.item())\n    mean = torch.tensor(sum(parts) / len(parts))\n")]),
    ("printed by all", PASSED, [("    if rank == 0:\n        print", "    print")]),
    ("printed by the other rank", PASSED, [("if rank == 0:", "if rank == 1:")]),
    ("in each step", PASSED, [
        (STEP, STEP + "        shown = loss.detach().clone()\n        dist.all_reduce(shown)\n        if rank == 0:\n            print('loss', round(shown.item() / world_size, 4))\n"),
    ]),
    ("next to its own", PASSED, [
        ("loss {mean.item():.4f}", "own loss {loss.item():.4f}, mean loss {mean.item():.4f}"),
    ]),
    ("too few decimals", "unclear", [(".4f} accuracy", ".1f} accuracy")]),
    ("in another form", PASSED, [("epoch {epoch}: loss {mean.item():.4f}", "[{epoch}/4] train_loss={mean.item():.5f}")]),
    ("with logging", PASSED, [
        ("import torch\n", "import logging\n\nimport torch\n"), ("print(", "logging.warning("),
    ]),
    ("a tensor with sum and count", PASSED, [
        (MEAN, "    pair = torch.tensor([loss.item(), 1.0])\n    dist.all_reduce(pair)\n    mean = pair[0] / pair[1]\n"),
    ]),
    ("accuracy on all samples by each rank", PASSED, [("range(rank, 101, world_size)", "range(101)")]),
    ("its own loss", "own_loss", [(MEAN, "    mean = loss\n")]),
    ("its own mean of the epoch", "own_loss", [
        ("    for x, y in loader:\n", EPOCH), (STEP, STEP + "        total += loss.detach()\n"),
        (MEAN, "    mean = total / len(loader)\n"),
    ]),
    ("printed by all, each its own", "own_loss", [(MEAN, "    mean = loss\n"), ("    if rank == 0:\n        print", "    print")]),
    ("its own in each step", "own_loss", [(STEP, STEP + "        if rank == 0:\n            print(f'loss {loss.item():.4f}')\n"), (MEAN, "    mean = loss\n")]),
    ("the sum", "summed_loss", [("    mean /= world_size\n", "")]),
    ("divided before, and not reduced", "other_loss", [(MEAN, "    mean = loss.detach() / world_size\n")]),
    ("reduced, but the old one printed", "own_loss", [("{mean.item()", "{loss.item()")]),
    ("the largest", "own_loss other_loss", [("dist.all_reduce(mean)\n    mean /= world_size", "dist.all_reduce(mean, op=dist.ReduceOp.MAX)")]),
    ("reduced on rank 0 alone", "hang disagree error", [(MEAN, "    mean = loss.detach().clone()\n    if rank == 0:\n        dist.all_reduce(mean)\n        mean /= world_size\n")]),
    ("nothing printed", "nothing_shown", [("loss {mean.item():.4f} ", "")]),
    *_EVALUATION_WRONG,
    ("no sampler", "same_samples", [("sampler=sampler", "shuffle=True"), (SET, "")]),
    ("no set_epoch", "same_order", [(SET, "")]),
    ("summed gradients", "summed", [(BACKWARD, "        (loss * world_size).backward()\n")]),
    ("a schedule for each rank", "schedule", [(SCHEDULE, "    for _ in range(world_size):\n        scheduler.step()\n")]),
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
IF_ELSE = """        if is_last:
            (nn.functional.cross_entropy(model(x), y) / 4).backward()
        else:
            with model.no_sync():
                (nn.functional.cross_entropy(model(x), y) / 4).backward()
"""
_BODY = f"""    for number, (x, y) in enumerate(loader, start=1):
        is_last = number % 4 == 0
{INSIDE}        if is_last:
            optimizer.step()
            optimizer.zero_grad()
"""
_ACCUMULATE = [
    ("if and else", PASSED, [(INSIDE, IF_ELSE)]),
    ("groups of batches", PASSED, [(_BODY, GROUPS)]),
    ("the flag of DDP", PASSED, [(INSIDE, "        model.require_backward_grad_sync = is_last\n" + OUTSIDE)]),
    ("an exit stack", PASSED, [
        ("        with contextlib.nullcontext() if is_last else model.no_sync():\n", "        with contextlib.ExitStack() as stack:\n            if not is_last:\n                stack.enter_context(model.no_sync())\n"),
    ]),
    ("by hand", PASSED, [(DDP, PLAIN), (INSIDE, OUTSIDE), ("            optimizer.step()\n", HAND)]),
    ("by hand, in a hook of the optimizer", PASSED, [
        (DDP, PLAIN), (INSIDE, OUTSIDE), ("\nfor epoch", HOOK + "\nfor epoch"),
    ]),
    ("by-passed until the last", PASSED, [(INSIDE, "        network = model if is_last else model.module\n" + OUTSIDE.replace("model(x)", "network(x)"))]),
    ("gradients divided at the end", PASSED, [
        (" / 4\n", "\n"), ("            optimizer.step()\n", "            for p in model.parameters():\n                p.grad /= 4\n            optimizer.step()\n"),
    ]),
    ("counted from 0", PASSED, [("start=1", "start=0"), ("number % 4 == 0", "(number + 1) % 4 == 0")]),
    ("cleared before", PASSED, [
        ("            optimizer.zero_grad()\n", ""), ("        is_last =", "        if number % 4 == 1:\n            optimizer.zero_grad()\n        is_last ="),
    ]),
    ("a printed mean", PASSED, [(SCHEDULE, SCHEDULE + "    shown = loss.detach() * 4\n    dist.all_reduce(shown)\n    print(f'loss {shown.item() / world_size:.4f}')\n")]),
    ("the loss of a module", PASSED, [("nn.functional.cross_entropy(model(x), y)", "nn.CrossEntropyLoss()(model(x), y)")]),
    ("always all-reduced", "wasted", [(INSIDE, OUTSIDE)]),
    ("no_sync around backward alone", "wasted", [
        (INSIDE, "        loss = nn.functional.cross_entropy(model(x), y) / 4\n        with contextlib.nullcontext() if is_last else model.no_sync():\n            loss.backward()\n"),
    ]),
    ("by hand in each pass", "wasted summed replicas_differ", [(DDP, PLAIN), (INSIDE, OUTSIDE + "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= world_size\n")]),
    ("no_sync for the first pass only", "wasted", [("is_last else", "number % 4 != 1 else")]),
    ("always no_sync", "not_averaged", [("contextlib.nullcontext() if is_last else model.no_sync()", "model.no_sync()")]),
    ("no_sync in the last pass", "replicas_differ wasted not_averaged", [("if is_last else", "if not is_last else")]),
    ("all-reduced in the first pass", "replicas_differ", [("is_last else", "number % 4 == 1 else")]),
    ("accumulation removed", "not_accumulated", [("number % 4 == 0", "True"), (" / 4\n", "\n")]),
    ("two passes only", "not_accumulated", [("number % 4", "number % 2")]),
    ("cleared in each pass", "other_gradient divided_twice", [
        ("        is_last =", "        optimizer.zero_grad()\n        is_last ="),
    ]),
    ("not divided", "not_divided", [(" / 4\n", "\n")]),
    ("divided by the ranks, too", "divided_twice", [(" / 4\n", " / 4 / world_size\n")]),
    ("summed over the ranks", "summed", [(" / 4\n", " / 4 * world_size\n")]),
    ("by hand, summed", "summed", [(DDP, PLAIN), (INSIDE, OUTSIDE), ("            optimizer.step()\n", HAND.replace("                p.grad /= world_size\n", ""))]),
    ("no set_epoch", "same_order", [(SET, "")]),
    ("no sampler", "same_samples", [("sampler=sampler", "shuffle=True"), (SET, "")]),
    ("a schedule for each rank", "schedule", [(SCHEDULE, SCHEDULE * 2)]),
]  # fmt: skip

SAVED = """def save(model, path):
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()  # no rank reads the file before it is complete

"""
CALL = '    save(model, f"epoch_{epoch}.pt")\n'
PRINTS = "    if rank == 0:\n        print"
ALONE = '    if rank == 0:\n        save(model, f"epoch_{epoch}.pt")\n'
_HANG = [
    ("no barrier", PASSED, [("    dist.barrier()  # no rank reads the file before it is complete\n", "")]),
    ("the barrier in the loop", PASSED, [
        ("    dist.barrier()  # no rank reads the file before it is complete\n", ""), (CALL, CALL + "    dist.barrier()\n"),
    ]),
    ("without the function", PASSED, [(CALL, '    if rank == 0:\n        torch.save(model.module.state_dict(), "all.pt")\n    dist.barrier()\n')]),
    ("early return after the barrier", PASSED, [(SAVED, SAVED.replace("    if rank == 0:\n        torch.save(model.module.state_dict(), path)\n", "    if rank == 0:\n        torch.save(model.state_dict(), path)\n"))]),
    ("saved before the line", PASSED, [(CALL, ""), (PRINTS, CALL + PRINTS)]),
    ("an all-reduce as the barrier", PASSED, [("dist.barrier()", "dist.all_reduce(torch.zeros(1))")]),
    ("the other rank saves", PASSED, [("    if rank == 0:\n        torch", "    if rank == 1:\n        torch")]),
    ("saved after the last epoch, too", PASSED, [("\ndist.destroy", '\nsave(model, "last.pt")\ndist.destroy')]),
    ("no collective in save, called by rank 0", PASSED, [
        ("    dist.barrier()  # no rank reads the file before it is complete\n", ""), (CALL, ALONE),
    ]),
    ("with the epoch's barrier first", PASSED, [(CALL, "    dist.barrier()\n" + CALL)]),
    ("saved by rank 0 alone", "hang disagree error", [(CALL, ALONE)]),
    ("the barrier by rank 0 alone", "hang disagree error", [("    dist.barrier()", "    if rank == 0:\n        dist.barrier()")]),
    ("early return before the barrier", "hang disagree error", [("    if rank == 0:\n        torch.save(model.module.state_dict(), path)\n", "    if rank != 0:\n        return\n    torch.save(model.module.state_dict(), path)\n")]),
    ("rank 0 breaks early", "hang disagree error uneven", [(CALL, CALL + "    if rank == 0 and epoch == 2:\n        break\n")]),
    ("a batch less on rank 1", "hang disagree error uneven", [
        ("    for x, y in loader:\n", "    for number, (x, y) in enumerate(loader):\n        if number == 7 and rank == 1:\n            break\n"),
    ]),
    ("uneven data", "hang disagree error uneven", [
        ("sampler=sampler", "sampler=list(sampler)[: 256 - 32 * rank]"),
    ]),
    ("the mean on rank 0 alone", "hang disagree error", [("    dist.all_reduce(mean)\n", "    if rank == 0:\n        dist.all_reduce(mean)\n")]),
    ("broadcast on rank 0 alone", "hang disagree error", [(CALL, CALL + "    if rank == 0:\n        dist.broadcast(mean, src=0)\n")]),
    ("all ranks save one file", "same_file", [("    if rank == 0:\n        torch", "    torch")]),
    ("the loss of rank 0 alone", "own_loss", [("    dist.all_reduce(mean)\n", ""), ("mean.item() / world_size", "mean.item()")]),
    *_EVALUATION_WRONG,
    ("nothing is saved any more", "not_saved", [(CALL, "")]),
    ("saved after the last epoch only", "not_saved", [
        (CALL, ""), ("\ndist.destroy", '\nsave(model, "last.pt")\ndist.destroy'),
    ]),
    ("nothing is printed any more", "nothing_shown", [("print(f", "str(f")]),
    ("no averaging", "not_averaged", [(DDP, DDP + "\nmodel.require_backward_grad_sync = False")]),
    ("summed gradients", "summed", [(BACKWARD, "        (loss * world_size).backward()\n")]),
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
