"""Checks of lessons in code: each examines the recorded run and reports the first error."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_gui.learn.code_facts import Facts, Printed, RankFacts, means

# Tolerances as shares of the samples: padding repeats a few samples, and the last batch may be dropped.
MOST_SHARED, LEAST_USED = 0.1, 0.9
# Relative tolerance for recognising a factor of the gradient.
FACTOR_WITHIN = 0.04
# All-reduces smaller than this share of the gradient are assumed to reduce losses and counts.
SMALL_SHARE = 0.2
MOST_WORDS = 400


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The requirements of a lesson's script.

    Attributes:
        epochs: passes over the data.
        decay: factor of the learning rate after each epoch; 1: constant.
        accumulate: backward passes per optimizer step.
        num_samples: number of training samples; 0: any number.
        saves: minimum number of saved checkpoints.
        about: names of the checks that are the subject of the lesson, in which a missing loss or file is also
            an error.
    """

    epochs: int
    decay: float = 1.0
    accumulate: int = 1
    num_samples: int = 0
    saves: int = 1
    about: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A failed check: a code, which selects the hints, and the measurement as text."""

    code: str
    words: str


Check = Callable[[Facts, Wanted], Finding | None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one check; `found` is None if the check passed or was not reached."""

    name: str
    label: str
    finding: Finding | None = None
    is_reached: bool = True


def check(facts: Facts, wanted: Wanted, names: Sequence[str]) -> list[Result]:
    """Return the results of the checks in order; the checks after the first failure are not reached."""
    found: list[Result] = []
    is_failed = False
    for name in names:
        label, rule = CHECKS[name]
        finding = None if is_failed else rule(facts, wanted)
        found.append(Result(name=name, label=label, finding=finding, is_reached=not is_failed))
        is_failed = is_failed or finding is not None
    return found


def _found(code: str, words: str) -> Finding:
    return Finding(code=code, words=words[:MOST_WORDS])


def _ends(facts: Facts, _wanted: Wanted) -> Finding | None:
    if facts.state == "finished":
        return None
    if facts.state == "stopped":
        return _found("stopped", "The run was stopped before its end.")
    if facts.code == "hang":
        return _found("hang", facts.error)
    if facts.ranks_disagree:
        words = "The ranks called different collectives at the same time, and the connection broke"
        return _found("disagree", f"{words}: {facts.error}")
    return _found("error", facts.error or "The script failed.")


def _ranks(facts: Facts, _wanted: Wanted) -> Finding | None:
    number = len(facts.ranks)
    for rank, about in enumerate(facts.ranks):
        if about.world_size is None:
            return _found("alone", f"Rank {rank} joined no process group: it trained by itself.")
        if about.world_size != number:
            return _found("alone", f"The process group of rank {rank} has {about.world_size} rank.")
        if not about.steps:
            return _found("idle", f"Rank {rank} performed no optimizer step.")
    counts = [len(about.steps) for about in facts.ranks]
    if len(set(counts)) > 1:
        words = ", ".join(f"rank {rank} did {count:,}" for rank, count in enumerate(counts))
        return _found("uneven", f"The ranks performed different numbers of optimizer steps: {words}.")
    return None


def _averages(facts: Facts, _wanted: Wanted) -> Finding | None:
    for rank, about in enumerate(facts.ranks):
        reduced = sum(size for step in about.steps for size in step.reduced_bytes)
        gradients = sum(step.gradient_bytes for step in about.steps)
        if reduced < gradients / 2:
            words = f"Rank {rank} computed {gradients:,} bytes of gradients and all-reduced {reduced:,} bytes"
            return _found("not_averaged", f"{words}: the ranks did not average their gradients.")
    for number, steps in enumerate(zip(*(about.steps for about in facts.ranks), strict=False), 1):
        if len({step.after for step in steps}) > 1:
            return _found("replicas_differ", f"After step {number:,} the ranks had different weights.")
    return None


def _mean_gradient(facts: Facts, _wanted: Wanted) -> Finding | None:
    """Compare the applied gradient with the mean of the ranks' gradients."""
    number = len(facts.ranks)
    factors = []
    for steps in zip(*(about.steps for about in facts.ranks), strict=False):
        local = math.fsum(step.local for step in steps) / number
        values = means([step.criteria for step in steps])
        losses = means([step.losses for step in steps])
        is_known = len(values) == len(losses) > 0 and math.fsum(values) > 0
        of_loss = math.fsum(losses) / (math.fsum(values) / len(values)) if is_known else 1.0
        if abs(local) > 1e-7:
            factors.append(steps[0].used / local * of_loss)
    if not factors:
        return None
    factor = statistics.median(factors)
    parts = round(statistics.median(len(step.losses) for step in facts.ranks[0].steps))
    words = f"Each step used {factor:.3g} times the mean gradient of all samples of the step"
    if _is_near(factor, number) and number > 1:
        return _found("summed", f"{words}: a sum over {number} ranks is not divided by {number}.")
    if _is_near(factor, parts) and parts > 1:
        return _found(
            "not_divided",
            f"{words}: the gradients of {parts} backward passes were summed instead of averaged.",
        )
    if parts > 1 and _is_near(factor, parts * number):
        return _found(
            "summed", f"{words}: the gradient is a sum over {number} ranks and {parts} backward passes."
        )
    if any(_is_near(factor, 1 / each) for each in (number, parts, number * parts) if each > 1):
        return _found("divided_twice", f"{words}: the gradient was divided once too often.")
    if sum(not _is_near(each, 1) for each in factors) > len(factors) / 2:
        return _found("other_gradient", "Most steps used a gradient that is not the mean over their samples.")
    return None


def _is_near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1) < FACTOR_WITHIN


def _schedule(facts: Facts, wanted: Wanted) -> Finding | None:
    rates = [step.lr for step in facts.ranks[0].steps]
    if wanted.decay == 1 or not rates or rates[0] <= 0:
        return None
    share, expected = rates[-1] / rates[0], wanted.decay ** (wanted.epochs - 1)
    if share > 0.95 * expected:
        return None
    words = f"The learning rate fell to {share:.1%} of its initial value instead of {expected:.1%}"
    return _found("schedule", f"{words} after {wanted.epochs - 1} epochs: the schedule is too fast.")


def _shards(facts: Facts, wanted: Wanted) -> Finding | None:
    parts = [about.epochs(wanted.epochs) for about in facts.ranks]
    everything = {sample for about in facts.ranks for sample in about.trained}
    if wanted.num_samples and len(everything) > (1 + MOST_SHARED) * wanted.num_samples:
        words = f"The ranks trained on {len(everything):,} different samples, but the data has"
        return _found("other_samples", f"{words} {wanted.num_samples:,}.")
    for number, of_ranks in enumerate(zip(*parts, strict=True), 1):
        seen = [set(samples) for samples in of_ranks]
        for one, other in itertools.combinations(range(len(seen)), 2):
            shared, least = len(seen[one] & seen[other]), min(len(seen[one]), len(seen[other]))
            if shared > MOST_SHARED * least:
                words = f"In epoch {number} rank {other} trained on {shared} of the {least} samples"
                return _found("same_samples", f"{words} on which rank {one} also trained.")
        used, whole = len(set().union(*seen)), wanted.num_samples or len(everything)
        if used < LEAST_USED * whole:
            words = f"In epoch {number} all ranks together trained on {used} of {whole} samples"
            return _found("samples_missing", f"{words}.")
    return None


def _reshuffles(facts: Facts, wanted: Wanted) -> Finding | None:
    for rank, about in enumerate(facts.ranks):
        for number, (one, other) in enumerate(itertools.pairwise(about.epochs(wanted.epochs)), 1):
            if one and one == other:
                words = f"Rank {rank} trained on the same samples in the same order in epochs {number} and"
                return _found("same_order", f"{words} {number + 1}.")
    return None


def _evaluation(facts: Facts, _wanted: Wanted) -> Finding | None:
    """Check that each validation sample counts once, and that the printed accuracy is over all of them."""
    everything = {sample for about in facts.ranks for each in about.evaluations for sample in each}
    sizes = (size for about in facts.ranks for size in about.sizes)
    whole = min((size for size in sizes if size >= len(everything)), default=len(everything))
    own = [len(about.evaluations[-1]) if about.evaluations else 0 for about in facts.ranks]
    if not whole:
        return None
    last = [about.evaluations[-1] for about in facts.ranks if about.evaluations]
    sees_all = any(whole in (len(each), len(set(each))) for each in last)
    if not sees_all and sum(own) != whole:
        words = (
            f"The ranks evaluated {' + '.join(map(str, own))} = {sum(own)} samples, but the split has {whole}"
        )
        return _found("padded", f"{words}: some samples count twice or are missing.")
    for rank, about in enumerate(facts.ranks):
        for line in about.printed:
            values = line.numbers("acc")[:1] if line.has("acc") else []
            if values and not _is_share_of(values[0], line, whole):
                number = own[rank]
                of_own = number < whole and _is_share_of(values[0], line, number)
                words = f"Rank {rank} printed the accuracy {values[0]}, which is impossible"
                code = "own_accuracy" if of_own else "other_accuracy"
                more = f": it is the accuracy on the {number} samples of rank {rank} alone" if of_own else ""
                return _found(code, f"{words} for {whole} samples{more}.")
    return None


def _is_share_of(text: str, line: Printed, number: int) -> bool:
    """True if a printed share is an integer divided by `number` samples, within its rounding."""
    value, within = float(text), 0.5 * 10.0 ** -_num_decimals(text)
    if f"{text}%" in line.line.replace(" ", "") or value > 1:
        value, within = value / 100, within / 100
    right = value * number
    return abs(right - round(right)) <= within * number + 1e-3


def _num_decimals(text: str) -> int:
    return len(text.lower().partition("e")[0].partition(".")[2])


def _shown_loss(facts: Facts, wanted: Wanted) -> Finding | None:
    """Compare each printed loss with the means over all ranks, and with the rank's own losses."""
    is_asked = "shown_loss" in wanted.about
    kinds: dict[str, list[str]] = {}
    for rank, about in enumerate(facts.ranks):
        before = 0
        for line in about.printed:
            values = line.numbers("loss") if line.has("loss") else []
            found = [_kind_of_loss(each, line, before, rank, facts.ranks, wanted.epochs) for each in values]
            if found:
                # A line may contain the rank's own loss in addition to the mean.
                kind, words = next((each for each in found if each[0] == "right"), found[0])
                kinds.setdefault(kind, []).append(words)
                before = line.num_losses
    if not kinds:
        return _found("nothing_shown", "No rank printed a loss.") if is_asked else None
    if len(kinds) > 1:
        kinds.pop("unclear", None)
    kind = max(kinds, key=lambda each: len(kinds[each]))
    if kind == "right" or (kind in ("other_loss", "unclear") and not is_asked):
        return None
    return _found(kind, kinds[kind][0])


def _kind_of_loss(
    text: str, line: Printed, before: int, rank: int, ranks: Sequence[RankFacts], epochs: int
) -> tuple[str, str]:
    value, within = float(text), 0.6 * 10.0 ** -_num_decimals(text)
    found: dict[str, float] = {}
    for series, place in (
        ([about.criteria for about in ranks], line.num_criteria),
        ([about.losses for about in ranks], line.num_losses),
    ):
        together = means(series)
        an_epoch = max(1, round(len(together) / epochs))
        begins = {place - 1, before if place == line.num_losses else place - an_epoch, place - an_epoch, 0}
        for first in sorted(number for number in begins if 0 <= number < place <= len(series[rank])):
            size = place - first
            mean, own = (sum(values[first:place]) / size for values in (together, series[rank]))
            near = [
                kind
                for kind, about in (("right", mean), ("own_loss", own), ("summed_loss", mean * len(ranks)))
                if abs(value - about) <= within + 2e-5 * abs(about)
            ]
            # If the ranks train on the same samples, their losses equal the mean; another check reports this.
            if {"right", "own_loss"} <= set(near) and not math.isclose(mean, own, rel_tol=1e-9):
                return "unclear", f"Rank {rank} printed the loss {text}: it has too few digits to compare."
            for each in near:
                found.setdefault(each, mean)
    kind = next((each for each in ("right", "own_loss", "summed_loss") if each in found), "other_loss")
    begin = f"Rank {rank} printed the loss {text}"
    if kind == "own_loss":
        return kind, f"{begin}, which is its own loss. The mean over all ranks was {found[kind]:.4f}."
    if kind == "summed_loss":
        return kind, f"{begin}, which is the sum over all ranks. The mean was {found[kind]:.4f}."
    return kind, f"{begin}, which is not the mean over all ranks of a batch or of an epoch."


def _files(facts: Facts, wanted: Wanted) -> Finding | None:
    for one, other in itertools.combinations(range(len(facts.ranks)), 2):
        both = facts.ranks[one].written & facts.ranks[other].written
        if both:
            name = sorted(both)[0].rpartition("/")[2]
            return _found("same_file", f"Ranks {one} and {other} both wrote {name}.")
    if "files" not in wanted.about:
        return None
    writers = [rank for rank, about in enumerate(facts.ranks) if about.saved]
    if not writers:
        return _found("not_saved", "No rank saved a checkpoint with torch.save.")
    if len(writers) > 1:
        return _found("all_save", f"Ranks {', '.join(map(str, writers))} all saved a checkpoint.")
    if (number := len(facts.ranks[writers[0]].saved)) < wanted.saves:
        words = f"Rank {writers[0]} saved {number} checkpoints; the task requires {wanted.saves}."
        return _found("not_saved", words)
    return None


def _restores(facts: Facts, _wanted: Wanted) -> Finding | None:
    if not any(about.loaded for about in facts.ranks):
        return _found("not_loaded", "No rank loaded the checkpoint with torch.load.")
    for rank, about in enumerate(facts.ranks):
        for number, (one, other) in enumerate(itertools.pairwise(about.steps), 1):
            if one.after != other.before:
                loads = "loaded the checkpoint, but" if about.loaded else "did not load the checkpoint:"
                words = f"Rank {rank} {loads} after step {number:,} it continued with other weights"
                return _found("not_restored", f"{words} than before.")
    saved = {path: place for about in facts.ranks for path, place in reversed(about.saved)}
    for rank, about in enumerate(facts.ranks):
        for path, place in about.loaded:
            if path in saved and not about.saved and place <= saved[path]:
                words = f"Rank {rank} began to load before it could know that the file was complete"
                return _found(
                    "too_early", f"{words}: the ranks called no collective between saving and loading."
                )
    return None


def _accumulates(facts: Facts, wanted: Wanted) -> Finding | None:
    for rank, about in enumerate(facts.ranks):
        passes = round(statistics.median(len(step.losses) for step in about.steps))
        if passes != wanted.accumulate:
            words = f"Rank {rank} performed {passes} backward passes per step instead of {wanted.accumulate}"
            return _found("not_accumulated", f"{words}.")
        steps = [step for step in about.steps if step.gradient_bytes]
        large = [
            [size for size in step.reduced_bytes if size > SMALL_SHARE * step.gradient_bytes]
            for step in steps
        ]
        share = statistics.median(
            sum(sizes or step.reduced_bytes) / step.gradient_bytes
            for sizes, step in zip(large, steps, strict=True)
        )
        if share > 1.5:
            words = f"In each step rank {rank} all-reduced {share:.3g} times the size of the gradient"
            return _found("wasted", f"{words}; averaging it once is enough.")
    return None


# The checks by name, each with its text on the page and its function.
CHECKS: Mapping[str, tuple[str, Check]] = {
    "ends": ("The script runs to its end", _ends),
    "ranks": ("All ranks train, in one process group", _ranks),
    "averages": ("Gradients are averaged, and all ranks keep the same weights", _averages),
    "mean_gradient": ("Each step uses the mean gradient", _mean_gradient),
    "schedule": ("The learning rate follows its schedule", _schedule),
    "shards": ("Each sample is used by one rank in an epoch", _shards),
    "reshuffles": ("Each epoch has a different order", _reshuffles),
    "files": ("No two ranks write the same file", _files),
    "restores": ("All ranks continue from the checkpoint", _restores),
    "evaluation": ("The printed accuracy is computed over all validation samples", _evaluation),
    "shown_loss": ("The printed loss is the mean over all ranks", _shown_loss),
    "accumulates": ("Gradients are all-reduced once per step", _accumulates),
}

# Default hints by the code of a finding; a lesson's own hints take precedence.
HINTS: Mapping[str, Sequence[str]] = {
    "stopped": ["Start it again, and let it run to its end."],
    "hang": [
        "The message names the ranks that wait, and their lines. Which rank does not reach this line?",
        ("All ranks must call a collective (`all_reduce`, `barrier`, `backward` under DDP). Is it below an "
        "`if rank == 0`, or in a loop that is shorter on one rank?"),
    ],
    "disagree": [
        ("One rank was in one collective while another rank was in a different one. Compare the collectives "
        "that each rank calls, from top to bottom."),
        "Do not call a collective below `if rank == 0`, and give all ranks the same number of batches.",
    ],
    "error": ["Read the last line of the error: it says what Python could not do, and where."],
    "alone": [
        ("torchrun starts the script once for each rank. The copies know nothing of each other until they "
        "join a process group."),
        '`torch.distributed.init_process_group("gloo")` joins it. Call it before wrapping the model.',
    ],
    "idle": ["Each rank must run the training loop. Is it below an `if rank == 0`?"],
    "uneven": ["All ranks need the same number of batches: a `DistributedSampler` pads the data for this."],
    "not_averaged": [
        "Each rank used its own gradients, without averaging them over the ranks.",
        "Wrap the model in `DistributedDataParallel`, and call the wrapped model, not `model.module`.",
    ],
    "replicas_differ": [
        "Something changed the weights of one rank only. Does each step use the averaged gradient?",
        ("Look for calls of `model.module`, a `no_sync` around the last backward pass of a step, or "
        "different initial weights without DDP."),
    ],
    "summed": ["DDP already averages: do not multiply the loss or the gradient by the number of ranks."],
    "not_divided": ["Backward passes sum their gradients: divide each loss by the number of passes."],
    "divided_twice": ["DDP divides by the number of ranks already: do not divide the loss again."],
    "schedule": ["Call `scheduler.step()` once per epoch on each rank, with any number of ranks."],
    "same_samples": [
        "Each rank trains on the entire data set, so two ranks do the same work.",
        "Pass `sampler=DistributedSampler(data)` to the `DataLoader`, without `shuffle`.",
    ],
    "other_samples": [
        "All ranks must create the same data: set the same seed on each rank before `torch.randn`."
    ],
    "samples_missing": ["Together the ranks must use all samples. Which samples does no rank get?"],
    "same_order": [
        "The sampler's order depends on a seed and the epoch, but your script does not set the epoch.",
        "Call `sampler.set_epoch(epoch)` before each pass over the loader.",
    ],
    "same_file": ["Write a file on one rank only: `if rank == 0:`."],
    "not_saved": ["Save with `torch.save` on one rank."],
    "all_save": ["All ranks have the same weights, so one rank can write the file."],
    "not_loaded": ["After the restart, read the file with `torch.load`."],
    "not_restored": [
        "Compare what each rank does between saving and the next step. Which ranks load the saved weights?",
        "Load on every rank, before creating the optimizer and wrapping the model in DDP.",
    ],
    "too_early": [
        "Another rank may read the file while rank 0 is still writing it.",
        "Call `dist.barrier()` on all ranks after saving, so that they wait for the file.",
    ],
    "padded": [
        ("A `DistributedSampler` repeats samples so that all ranks get the same number. For validation this "
        "is wrong."),
        "Give each rank every n-th sample: `Subset(data, range(rank, len(data), world_size))`.",
    ],
    "own_accuracy": ["Sum the numbers of correct predictions and of samples over the ranks, then divide."],
    "other_accuracy": [
        "The ranks may have different numbers of samples: do not average their accuracies, sum the counts."
    ],
    "own_loss": [
        "Rank 0 has only half of the samples, so its loss is not the loss of the batch.",
        "All-reduce a detached copy of the loss, divide it by the number of ranks, and print it on rank 0.",
    ],
    "summed_loss": ["An all-reduce sums: divide by the number of ranks."],
    "other_loss": ["Print the loss of one batch, or of all batches of the epoch, averaged over all ranks."],
    "unclear": ["Print the loss with four decimals."],
    "other_gradient": [
        "Are gradients cleared between the backward passes of one step, or not cleared after it?"
    ],
    "nothing_shown": ["Print a line with the word loss and a number with four decimals."],
    "not_accumulated": ["Keep the accumulation: several backward passes, then one step."],
    "wasted": [
        "DDP all-reduces in each backward pass, but only the last pass of a step needs this.",
        "`with model.no_sync():` skips the all-reduce. Put the forward pass inside, too.",
    ],
}  # fmt: skip
