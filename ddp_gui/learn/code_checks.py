"""Checks of lessons in code: each examines the recorded run and reports the first error."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_gui.learn.code_facts import Printed, RankFacts, RunFacts, means

# Tolerances as shares of the samples: padding repeats a few samples, and the last batch may be dropped.
MAX_SHARED_SHARE, MIN_USED_SHARE = 0.1, 0.9
# Relative tolerance for recognising a factor of the gradient.
FACTOR_TOLERANCE = 0.04
# All-reduces smaller than this share of the gradient are assumed to reduce losses and counts.
SMALL_SHARE = 0.2
MAX_MESSAGE = 400


@dataclass(frozen=True, kw_only=True)
class Requirements:
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
class CodeFinding:
    """A failed check: a code, which selects the hints, and the measurement as text."""

    code: str
    words: str


Check = Callable[[RunFacts, Requirements], CodeFinding | None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one check; `found` is None if the check passed or was not reached."""

    name: str
    label: str
    finding: CodeFinding | None = None
    is_reached: bool = True


def check(facts: RunFacts, requirements: Requirements, names: Sequence[str]) -> list[Result]:
    """Return the results of the checks in order; the checks after the first failure are not reached."""
    results: list[Result] = []
    is_failed = False
    for name in names:
        label, rule = CHECKS[name]
        finding = None if is_failed else rule(facts, requirements)
        results.append(Result(name=name, label=label, finding=finding, is_reached=not is_failed))
        is_failed = is_failed or finding is not None
    return results


def _failure(code: str, message: str) -> CodeFinding:
    return CodeFinding(code=code, words=message[:MAX_MESSAGE])


def _check_end(facts: RunFacts, _requirements: Requirements) -> CodeFinding | None:
    if facts.state == "finished":
        return None
    if facts.state == "stopped":
        return _failure("stopped", "The run was stopped before its end.")
    if facts.code == "hang":
        return _failure("hang", facts.error)
    if facts.ranks_disagree:
        message = "The ranks called different collectives at the same time, and the connection broke"
        return _failure("disagree", f"{message}: {facts.error}")
    return _failure("error", facts.error or "The script failed.")


def _check_ranks(facts: RunFacts, _requirements: Requirements) -> CodeFinding | None:
    num_ranks = len(facts.ranks)
    for rank, rank_facts in enumerate(facts.ranks):
        if rank_facts.world_size is None:
            return _failure("alone", f"Rank {rank} joined no process group: it trained by itself.")
        if rank_facts.world_size != num_ranks:
            return _failure("alone", f"The process group of rank {rank} has {rank_facts.world_size} rank.")
        if not rank_facts.steps:
            return _failure("idle", f"Rank {rank} performed no optimizer step.")
    counts = [len(rank_facts.steps) for rank_facts in facts.ranks]
    if len(set(counts)) > 1:
        message = ", ".join(f"rank {rank} did {count:,}" for rank, count in enumerate(counts))
        return _failure("uneven", f"The ranks performed different numbers of optimizer steps: {message}.")
    return None


def _check_averaging(facts: RunFacts, _requirements: Requirements) -> CodeFinding | None:
    for rank, rank_facts in enumerate(facts.ranks):
        reduced = sum(size for step in rank_facts.steps for size in step.reduced_bytes)
        gradients = sum(step.gradient_bytes for step in rank_facts.steps)
        if reduced < gradients / 2:
            message = (
                f"Rank {rank} computed {gradients:,} bytes of gradients and all-reduced {reduced:,} bytes"
            )
            return _failure("not_averaged", f"{message}: the ranks did not average their gradients.")
    for step_number, steps in enumerate(
        zip(*(rank_facts.steps for rank_facts in facts.ranks), strict=False), 1
    ):
        if len({step.after for step in steps}) > 1:
            return _failure("replicas_differ", f"After step {step_number:,} the ranks had different weights.")
    return None


def _check_mean_gradient(facts: RunFacts, _requirements: Requirements) -> CodeFinding | None:
    """Compare the applied gradient with the mean of the ranks' gradients."""
    num_ranks = len(facts.ranks)
    factors = []
    for steps in zip(*(rank_facts.steps for rank_facts in facts.ranks), strict=False):
        local = math.fsum(step.local for step in steps) / num_ranks
        values = means([step.criteria for step in steps])
        losses = means([step.losses for step in steps])
        is_known = len(values) == len(losses) > 0 and math.fsum(values) > 0
        loss_ratio = math.fsum(losses) / (math.fsum(values) / len(values)) if is_known else 1.0
        if abs(local) > 1e-7:
            factors.append(steps[0].used / local * loss_ratio)
    if not factors:
        return None
    factor = statistics.median(factors)
    num_passes = round(statistics.median(len(step.losses) for step in facts.ranks[0].steps))
    message = f"Each step used {factor:.3g} times the mean gradient of all samples of the step"
    if _is_near(factor, num_ranks) and num_ranks > 1:
        return _failure("summed", f"{message}: a sum over {num_ranks} ranks is not divided by {num_ranks}.")
    if _is_near(factor, num_passes) and num_passes > 1:
        return _failure(
            "not_divided",
            f"{message}: the gradients of {num_passes} backward passes were summed instead of averaged.",
        )
    if num_passes > 1 and _is_near(factor, num_passes * num_ranks):
        return _failure(
            "summed",
            f"{message}: the gradient is a sum over {num_ranks} ranks and {num_passes} backward passes.",
        )
    if any(
        _is_near(factor, 1 / each) for each in (num_ranks, num_passes, num_ranks * num_passes) if each > 1
    ):
        return _failure("divided_twice", f"{message}: the gradient was divided once too often.")
    if sum(not _is_near(each, 1) for each in factors) > len(factors) / 2:
        return _failure(
            "other_gradient", "Most steps used a gradient that is not the mean over their samples."
        )
    return None


def _is_near(value: float, expected: float) -> bool:
    return abs(value / expected - 1) < FACTOR_TOLERANCE


def _check_schedule(facts: RunFacts, requirements: Requirements) -> CodeFinding | None:
    rates = [step.lr for step in facts.ranks[0].steps]
    if requirements.decay == 1 or not rates or rates[0] <= 0:
        return None
    share, expected = rates[-1] / rates[0], requirements.decay ** (requirements.epochs - 1)
    if share > 0.95 * expected:
        return None
    message = f"The learning rate fell to {share:.1%} of its initial value instead of {expected:.1%}"
    return _failure(
        "schedule", f"{message} after {requirements.epochs - 1} epochs: the schedule is too fast."
    )


def _check_shards(facts: RunFacts, requirements: Requirements) -> CodeFinding | None:
    epochs = [rank_facts.epochs(requirements.epochs) for rank_facts in facts.ranks]
    all_samples = {sample for rank_facts in facts.ranks for sample in rank_facts.trained}
    if requirements.num_samples and len(all_samples) > (1 + MAX_SHARED_SHARE) * requirements.num_samples:
        message = f"The ranks trained on {len(all_samples):,} different samples, but the data has"
        return _failure("other_samples", f"{message} {requirements.num_samples:,}.")
    for epoch, rank_samples in enumerate(zip(*epochs, strict=True), 1):
        seen = [set(samples) for samples in rank_samples]
        for rank, other_rank in itertools.combinations(range(len(seen)), 2):
            num_shared, smaller = (
                len(seen[rank] & seen[other_rank]),
                min(len(seen[rank]), len(seen[other_rank])),
            )
            if num_shared > MAX_SHARED_SHARE * smaller:
                message = (
                    f"In epoch {epoch} rank {other_rank} trained on {num_shared} of the {smaller} samples"
                )
                return _failure("same_samples", f"{message} on which rank {rank} also trained.")
        num_used, num_samples = len(set().union(*seen)), requirements.num_samples or len(all_samples)
        if num_used < MIN_USED_SHARE * num_samples:
            message = f"In epoch {epoch} all ranks together trained on {num_used} of {num_samples} samples"
            return _failure("samples_missing", f"{message}.")
    return None


def _check_reshuffling(facts: RunFacts, requirements: Requirements) -> CodeFinding | None:
    for rank, rank_facts in enumerate(facts.ranks):
        for epoch, (previous, current) in enumerate(
            itertools.pairwise(rank_facts.epochs(requirements.epochs)), 1
        ):
            if previous and previous == current:
                message = f"Rank {rank} trained on the same samples in the same order in epochs {epoch} and"
                return _failure("same_order", f"{message} {epoch + 1}.")
    return None


def _check_evaluation(facts: RunFacts, _requirements: Requirements) -> CodeFinding | None:
    """Check that each validation sample counts once, and that the printed accuracy is over all of them."""
    all_samples = {
        sample for rank_facts in facts.ranks for evaluation in rank_facts.evaluations for sample in evaluation
    }
    sizes = (size for rank_facts in facts.ranks for size in rank_facts.sizes)
    num_samples = min((size for size in sizes if size >= len(all_samples)), default=len(all_samples))
    num_evaluated = [
        len(rank_facts.evaluations[-1]) if rank_facts.evaluations else 0 for rank_facts in facts.ranks
    ]
    if not num_samples:
        return None
    last = [rank_facts.evaluations[-1] for rank_facts in facts.ranks if rank_facts.evaluations]
    sees_all = any(num_samples in (len(evaluation), len(set(evaluation))) for evaluation in last)
    if not sees_all and sum(num_evaluated) != num_samples:
        message = (
            f"The ranks evaluated {' + '.join(map(str, num_evaluated))} = {sum(num_evaluated)} samples, "
            f"but the split has {num_samples}"
        )
        return _failure("padded", f"{message}: some samples count twice or are missing.")
    for rank, rank_facts in enumerate(facts.ranks):
        for line in rank_facts.printed:
            values = line.numbers("acc")[:1] if line.has("acc") else []
            if values and not _is_share_of(values[0], line, num_samples):
                num_own = num_evaluated[rank]
                is_own = num_own < num_samples and _is_share_of(values[0], line, num_own)
                message = f"Rank {rank} printed the accuracy {values[0]}, which is impossible"
                code = "own_accuracy" if is_own else "other_accuracy"
                explanation = (
                    f": it is the accuracy on the {num_own} samples of rank {rank} alone" if is_own else ""
                )
                return _failure(code, f"{message} for {num_samples} samples{explanation}.")
    return None


def _is_share_of(text: str, line: Printed, num_samples: int) -> bool:
    """True if a printed share is an integer divided by `num_samples`, within its rounding."""
    value, tolerance = float(text), 0.5 * 10.0 ** -_num_decimals(text)
    if f"{text}%" in line.line.replace(" ", "") or value > 1:
        value, tolerance = value / 100, tolerance / 100
    num_right = value * num_samples
    return abs(num_right - round(num_right)) <= tolerance * num_samples + 1e-3


def _num_decimals(text: str) -> int:
    return len(text.lower().partition("e")[0].partition(".")[2])


def _check_shown_loss(facts: RunFacts, requirements: Requirements) -> CodeFinding | None:
    """Compare each printed loss with the means over all ranks, and with the rank's own losses."""
    is_required = "shown_loss" in requirements.about
    kinds: dict[str, list[str]] = {}
    for rank, rank_facts in enumerate(facts.ranks):
        num_before = 0
        for line in rank_facts.printed:
            values = line.numbers("loss") if line.has("loss") else []
            results = [
                _classify_loss(each, line, num_before, rank, facts.ranks, requirements.epochs)
                for each in values
            ]
            if results:
                # A line may contain the rank's own loss in addition to the mean.
                kind, message = next((each for each in results if each[0] == "right"), results[0])
                kinds.setdefault(kind, []).append(message)
                num_before = line.num_losses
    if not kinds:
        return _failure("nothing_shown", "No rank printed a loss.") if is_required else None
    if len(kinds) > 1:
        kinds.pop("unclear", None)
    kind = max(kinds, key=lambda each: len(kinds[each]))
    if kind == "right" or (kind in ("other_loss", "unclear") and not is_required):
        return None
    return _failure(kind, kinds[kind][0])


def _classify_loss(
    text: str, line: Printed, num_before: int, rank: int, ranks: Sequence[RankFacts], epochs: int
) -> tuple[str, str]:
    value, tolerance = float(text), 0.6 * 10.0 ** -_num_decimals(text)
    means_by_kind: dict[str, float] = {}
    for series, end in (
        ([rank_facts.criteria for rank_facts in ranks], line.num_criteria),
        ([rank_facts.losses for rank_facts in ranks], line.num_losses),
    ):
        rank_means = means(series)
        epoch_size = max(1, round(len(rank_means) / epochs))
        starts = {end - 1, num_before if end == line.num_losses else end - epoch_size, end - epoch_size, 0}
        for start in sorted(number for number in starts if 0 <= number < end <= len(series[rank])):
            size = end - start
            mean, own = (sum(values[start:end]) / size for values in (rank_means, series[rank]))
            near = [
                kind
                for kind, expected in (
                    ("right", mean),
                    ("own_loss", own),
                    ("summed_loss", mean * len(ranks)),
                )
                if abs(value - expected) <= tolerance + 2e-5 * abs(expected)
            ]
            # If the ranks train on the same samples, their losses equal the mean; another check reports this.
            if {"right", "own_loss"} <= set(near) and not math.isclose(mean, own, rel_tol=1e-9):
                return "unclear", f"Rank {rank} printed the loss {text}: it has too few digits to compare."
            for each in near:
                means_by_kind.setdefault(each, mean)
    kind = next(
        (each for each in ("right", "own_loss", "summed_loss") if each in means_by_kind), "other_loss"
    )
    message = f"Rank {rank} printed the loss {text}"
    if kind == "own_loss":
        return (
            kind,
            f"{message}, which is its own loss. The mean over all ranks was {means_by_kind[kind]:.4f}.",
        )
    if kind == "summed_loss":
        return kind, f"{message}, which is the sum over all ranks. The mean was {means_by_kind[kind]:.4f}."
    return kind, f"{message}, which is not the mean over all ranks of a batch or of an epoch."


def _check_files(facts: RunFacts, requirements: Requirements) -> CodeFinding | None:
    for rank, other_rank in itertools.combinations(range(len(facts.ranks)), 2):
        shared = facts.ranks[rank].written & facts.ranks[other_rank].written
        if shared:
            name = sorted(shared)[0].rpartition("/")[2]
            return _failure("same_file", f"Ranks {rank} and {other_rank} both wrote {name}.")
    if "files" not in requirements.about:
        return None
    writers = [rank for rank, rank_facts in enumerate(facts.ranks) if rank_facts.saved]
    if not writers:
        return _failure("not_saved", "No rank saved a checkpoint with torch.save.")
    if len(writers) > 1:
        return _failure("all_save", f"Ranks {', '.join(map(str, writers))} all saved a checkpoint.")
    if (number := len(facts.ranks[writers[0]].saved)) < requirements.saves:
        message = f"Rank {writers[0]} saved {number} checkpoints; the task requires {requirements.saves}."
        return _failure("not_saved", message)
    return None


def _check_restoring(facts: RunFacts, _requirements: Requirements) -> CodeFinding | None:
    if not any(rank_facts.loaded for rank_facts in facts.ranks):
        return _failure("not_loaded", "No rank loaded the checkpoint with torch.load.")
    for rank, rank_facts in enumerate(facts.ranks):
        for step_number, (step, next_step) in enumerate(itertools.pairwise(rank_facts.steps), 1):
            if step.after != next_step.before:
                action = "loaded the checkpoint, but" if rank_facts.loaded else "did not load the checkpoint:"
                message = f"Rank {rank} {action} after step {step_number:,} it continued with other weights"
                return _failure("not_restored", f"{message} than before.")
    saved = {path: position for rank_facts in facts.ranks for path, position in reversed(rank_facts.saved)}
    for rank, rank_facts in enumerate(facts.ranks):
        for path, position in rank_facts.loaded:
            if path in saved and not rank_facts.saved and position <= saved[path]:
                message = f"Rank {rank} began to load before it could know that the file was complete"
                return _failure(
                    "too_early", f"{message}: the ranks called no collective between saving and loading."
                )
    return None


def _check_accumulation(facts: RunFacts, requirements: Requirements) -> CodeFinding | None:
    for rank, rank_facts in enumerate(facts.ranks):
        num_passes = round(statistics.median(len(step.losses) for step in rank_facts.steps))
        if num_passes != requirements.accumulate:
            message = (
                f"Rank {rank} performed {num_passes} backward passes per step "
                f"instead of {requirements.accumulate}"
            )
            return _failure("not_accumulated", f"{message}.")
        steps = [step for step in rank_facts.steps if step.gradient_bytes]
        large = [
            [size for size in step.reduced_bytes if size > SMALL_SHARE * step.gradient_bytes]
            for step in steps
        ]
        share = statistics.median(
            sum(sizes or step.reduced_bytes) / step.gradient_bytes
            for sizes, step in zip(large, steps, strict=True)
        )
        if share > 1.5:
            message = f"In each step rank {rank} all-reduced {share:.3g} times the size of the gradient"
            return _failure("wasted", f"{message}; averaging it once is enough.")
    return None


# The checks by name, each with its text on the page and its function.
CHECKS: Mapping[str, tuple[str, Check]] = {
    "ends": ("The script runs to its end", _check_end),
    "ranks": ("All ranks train, in one process group", _check_ranks),
    "averages": ("Gradients are averaged, and all ranks keep the same weights", _check_averaging),
    "mean_gradient": ("Each step uses the mean gradient", _check_mean_gradient),
    "schedule": ("The learning rate follows its schedule", _check_schedule),
    "shards": ("Each sample is used by one rank in an epoch", _check_shards),
    "reshuffles": ("Each epoch has a different order", _check_reshuffling),
    "files": ("No two ranks write the same file", _check_files),
    "restores": ("All ranks continue from the checkpoint", _check_restoring),
    "evaluation": ("The printed accuracy is computed over all validation samples", _check_evaluation),
    "shown_loss": ("The printed loss is the mean over all ranks", _check_shown_loss),
    "accumulates": ("Gradients are all-reduced once per step", _check_accumulation),
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
