"""Findings about a running script: common mistakes with DDP, each with its line.

Rules examine the recorded behaviour of the ranks, not the source of the script. `Review` collects the notes
of all ranks and returns each finding once. A "mistake" makes results wrong or wastes the ranks; a "remark"
may be intended.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trainers.watch import spool

# Shared samples, as a fraction and a count, that indicate that ranks draw from the same samples. Padding by a
# sampler repeats only a few.
SHARED_SAMPLES, MIN_SHARED_SAMPLES = 0.05, 8
# Minimum share of distinct samples: equal samples (constant inputs, masks) cannot be compared.
DISTINCT_SAMPLES = 0.5
# Minimum ratio of samples shared between ranks to samples that are equal within a rank.
EQUAL_SAMPLES = 2
SMALL_BATCH_NORM = 8
LOSS_DIFFERS = 0.02
LONG_EVALUATION_S = 1.0
MAX_NOTES = 200
# Maximum number of steps whose losses are kept for the next call of `new_findings`.
MAX_LOSSES = 2000
# Differing replicas are reported after this many further steps or at the end: local SGD averages them.
STEPS_TO_AVERAGE = 32
# Reads of the loss on a GPU are reported from this number per step, over this many steps.
READS_A_STEP, STEPS_TO_READ = 0.9, 40

Finding = dict[str, Any]
# A message, and the note with file and line; None if the rule finds nothing.
RuleResult = tuple[str, Mapping[str, Any]] | None


class ReviewRule(NamedTuple):
    """A rule: its function, level, lesson and advice; `at_end`: applied only after the script has ended."""

    find: Callable[[Review], RuleResult]
    level: str
    lesson: str | None
    hint: str
    at_end: bool


_RULES: dict[str, ReviewRule] = {}
# Findings that replace another one: the page shows only the latest finding of each code.
_REPLACES = {"averages_weights": "replicas_differ"}


def rule(level: str, lesson: str | None, hint: str, *, at_end: bool = False) -> Callable[[Any], Any]:
    """Register a rule; its name is the code of the finding."""

    def register(find: Callable[[Review], RuleResult]) -> Callable[[Review], RuleResult]:
        _RULES[find.__name__.removeprefix("_")] = ReviewRule(find, level, lesson, hint, at_end)
        return find

    return register


mistake, remark = functools.partial(rule, "mistake"), functools.partial(rule, "remark")


class Review:
    """Collects the notes of a script's ranks, and derives findings."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.notes: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        self.losses: OrderedDict[int, Sequence[float]] = OrderedDict()
        # The first step after which the weights differ; the note of the averaging that made them equal again.
        self.differs_after: int | None = None
        self.average: Mapping[str, Any] | None = None
        self.num_steps = 0
        self.is_over = self._has_equal_weights = False
        self._reported_codes: set[str] = set()

    def add_note(self, rank: int, kind: str, note: dict[str, Any]) -> None:
        """Add a note of a rank."""
        if kind not in ("sample", "log", "fingerprint"):
            if kind == "samples":
                note["hashes"] = set(note["hashes"])
            self.notes[kind][rank].append(note)
            del self.notes[kind][rank][:-MAX_NOTES]

    def add_fingerprints(self, note: Mapping[str, Any], hashes: Sequence[str]) -> None:
        """Add the hashes of all ranks' weights after a step, with one rank's note."""
        if len(set(hashes)) == 1:
            self._has_equal_weights = True
            if note["is_averaged"] and self.differs_after is not None:
                self.average = note
        elif self.differs_after is None:
            self.differs_after = note["step"]

    def add_step(self, step: int, losses: Sequence[float]) -> None:
        """Add one step, with the losses of its ranks."""
        if len(losses) == self.num_ranks:
            self.num_steps = step
            self.losses[step] = losses
            if len(self.losses) > MAX_LOSSES:
                self.losses.popitem(last=False)

    def new_findings(self, *, is_over: bool = False) -> Iterator[Finding]:
        """Yield the new findings; some are certain only after the script has ended."""
        self.is_over = is_over
        self._match_reads()
        for code, rule in _RULES.items():
            if (
                code in self._reported_codes
                or (rule.at_end and not is_over)
                or (result := rule.find(self)) is None
            ):
                continue
            self._reported_codes.add(code)
            message, note = result
            location = {name: note.get(name) for name in ("file", "line")}
            yield {
                "code": _REPLACES.get(code, code), "message": message, "hint": rule.hint,
                "level": rule.level, "rank": None, "lesson": rule.lesson, **location,
            }  # fmt: skip

    def _match_reads(self) -> None:
        """Match each loss that rank 0 has read with the loss of its step and the mean over the ranks."""
        for note in self.notes["read"][0]:
            losses, ratio = self.losses.get(note["step"]), note["value"] / (note["loss"] or math.nan)
            # The read value may belong to one of several backward passes, before the division by their
            # number.
            if losses and 0.5 < ratio < 1e6 and math.isclose(ratio, round(ratio), rel_tol=1e-6):
                note |= {"own": losses[0], "mean": sum(losses) / len(losses)}

    def newest(self, kind: str) -> dict[int, dict[str, Any]]:
        """Return each rank's latest note of a kind."""
        return {rank: notes[-1] for rank, notes in self.notes[kind].items() if notes}

    @property
    def is_split(self) -> bool:
        """True if the ranks hold parts of one model instead of replicas. Messages between ranks indicate a
        pipeline, unless DDP or FSDP covers all ranks, or their weights are equal after a step. Other scripts
        also send messages, for example in a ring that averages gradients.
        """
        is_shared = self.first("model").get("num_sharing", 1) == self.num_ranks
        is_pipeline = bool(self.newest("messages")) and not is_shared and not self._has_equal_weights
        return is_pipeline or bool(self.newest("split"))

    def first(self, kind: str) -> Mapping[str, Any]:
        """Return rank 0's latest note of a kind; empty if there is none."""
        return self.newest(kind).get(0, {})


@mistake(
    "01-what-a-rank-is",
    "Use DistributedDataParallel with one process per GPU, as PyTorch recommends: it is faster.",
)
def _data_parallel(review: Review) -> RuleResult:
    notes = review.newest("data_parallel")
    message = "The script uses DataParallel: one process with one thread per GPU."
    return (message, next(iter(notes.values()))) if notes else None


@mistake(
    "01-what-a-rank-is", "Call torch.cuda.set_device(local_rank) before the model is created (LOCAL_RANK)."
)
def _one_gpu(review: Review) -> RuleResult:
    devices = [note["device"] for note in review.newest("model").values()]
    if len(devices) < max(2, review.num_ranks) or not devices[0].startswith("cuda") or len(set(devices)) > 1:
        return None
    return f"All ranks are on {devices[0]}: the other GPUs idle.", review.first("optimizer")


@mistake(
    "03-same-replicas",
    "Wrap the model in DistributedDataParallel, and use only the wrapped model afterwards.",
)
def _replicas_differ(review: Review) -> RuleResult:
    step = review.differs_after
    if step is None or review.average or review.is_split:
        return None
    is_wrapped = review.first("model").get("wrapper") == "ddp"
    # With unused parameters DDP averages nothing in its first step, and ends with an error in the second.
    if review.num_steps < step + (STEPS_TO_AVERAGE if not review.is_over else is_wrapped):
        return None
    reason = (
        "The model is wrapped in DDP, so parameters are probably used or changed outside of the wrapper."
        if is_wrapped
        else "The model is not wrapped in DistributedDataParallel, so each rank trains its own model."
    )
    note = review.first("model" if is_wrapped else "optimizer")
    return f"After step {step:,} the ranks' weights differ. {reason}", note


@remark(
    "03-same-replicas",
    "This is correct for local SGD. DistributedDataParallel averages the gradients of each step instead.",
)
def _averages_weights(review: Review) -> RuleResult:
    message = "Each rank trains its own weights, and the ranks average them every few steps"
    return None if review.average is None else (f"{message} (local SGD).", review.average)


@mistake("02-who-sees-what", "Give the DataLoader a DistributedSampler(dataset), and remove shuffle=True.")
def _same_samples(review: Review) -> RuleResult:
    rank_samples = [
        (note["hashes"], note["num_samples"]) for _, note in sorted(review.newest("samples").items())
    ]
    if len(rank_samples) < max(2, review.num_ranks) or review.is_split:
        return None
    if any(len(hashes) < DISTINCT_SAMPLES * number for hashes, number in rank_samples):
        return None
    (first, _), (second, _), *_ = rank_samples
    shared, number = len(first & second), max(1, min(len(first), len(second)))
    # In data with equal samples, about as many are equal between two ranks as within each rank.
    num_equal = sum(num_samples - len(hashes) for hashes, num_samples in rank_samples[:2])
    if shared < max(MIN_SHARED_SAMPLES, SHARED_SAMPLES * number, EQUAL_SAMPLES * num_equal):
        return None
    message = f"{round(100 * shared / number)}% of rank 1's samples in its first pass were also rank 0's"
    location = review.first("pass") or review.first("optimizer")
    return f"Ranks train on the same samples: {message}. They repeat work instead of sharing it.", location


@mistake(
    "02-who-sees-what", "Call sampler.set_epoch(epoch) at the beginning of each epoch to reshuffle the data."
)
def _no_set_epoch(review: Review) -> RuleResult:
    for previous, current in itertools.pairwise(review.notes["pass"].get(0, [])):
        is_same = (
            current["order"] is not None and current["order"] == previous["order"] and current["shuffles"]
        )
        if is_same and current["sampler"] == previous["sampler"] == "DistributedSampler":
            numbers = (
                f"Pass {current['number']} over the data had the same order as pass {previous['number']}."
            )
            return numbers, current
    return None


@mistake("08-uneven-batches", "Use a DistributedSampler, which pads to equal parts, or `with model.join():`.")
def _uneven_inputs(review: Review) -> RuleResult:
    counts = {rank: note["num_batches"] for rank, note in sorted(review.newest("pass").items())}
    is_known = len(counts) == review.num_ranks and None not in counts.values()
    is_wrapped = review.first("model").get("wrapper") == "ddp"
    if not is_known or not is_wrapped or len(set(counts.values())) < 2 or review.newest("joins"):
        return None
    counts_text = ", ".join(f"rank {rank} has {count}" for rank, count in counts.items())
    message = f"Ranks have different numbers of batches in a pass: {counts_text}. A rank with fewer leaves "
    return f"{message}the others waiting in their all-reduce.", review.first("pass")


@mistake("07-rank-0-alone", "Write it on rank 0 only: if dist.get_rank() == 0.")
def _same_file(review: Review) -> RuleResult:
    writers: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for rank, notes in review.notes["file"].items():
        for note in notes:
            writers[note["path"]][rank] = note
    for path, by_rank in writers.items():
        if len(by_rank) >= 2:
            ranks = ", ".join(map(str, sorted(by_rank)))
            message = f"Ranks {ranks} write the same file, {path}: its final content is unpredictable."
            return message, by_rank[min(by_rank)]
    return None


@remark(None, "On GPUs, nn.SyncBatchNorm.convert_sync_batchnorm(model) computes them over all ranks.")
def _small_batch_norm(review: Review) -> RuleResult:
    model, batch = review.first("model"), review.first("pass").get("batch_size")
    if review.num_ranks < 2 or not model.get("num_batch_norms") or batch is None or batch > SMALL_BATCH_NORM:
        return None
    return f"BatchNorm computes its statistics over each rank's batch of only {batch} samples.", model


@remark("07-rank-0-alone", "Evaluate a part of the data on each rank, and sum the counts with all_reduce.")
def _evaluates_alone(review: Review) -> RuleResult:
    changes = review.notes["mode"]
    evaluations = [note for note in changes.get(0, ()) if not note["is_training"]]
    do_others_evaluate = any(
        not note["is_training"] for rank, notes in changes.items() if rank for note in notes
    )
    durations_s = [
        after["at"] - before["at"]
        for before, after in itertools.pairwise(changes.get(0, ()))
        if after["is_training"] and not before["is_training"]
    ]
    if (
        review.num_ranks < 2
        or not evaluations
        or do_others_evaluate
        or max(durations_s, default=0.0) < LONG_EVALUATION_S
    ):
        return None
    message = (
        f"Only rank 0 evaluates, for up to {max(durations_s):.1f} s; others wait in their next all-reduce."
    )
    return message, evaluations[0]


@remark(
    "04-global-batch",
    "If the learning rate was chosen for one GPU, multiply it by the number of ranks, and use a warm-up.",
)
def _rate_not_scaled(review: Review) -> RuleResult:
    optimizer, number = review.first("optimizer"), review.num_ranks
    is_plain = optimizer.get("name") == "SGD" and review.first("model").get("wrapper") == "ddp"
    # If the script multiplies the rate by the number of ranks, the rate does not occur in its source.
    if number < 4 or not is_plain or not optimizer["is_rate_written"]:
        return None
    message = (
        f"{number} ranks make the batch {number} times as large; the learning rate is {optimizer['lr']:g}."
    )
    return message, optimizer


@remark(
    "06-whose-loss",
    "To show the mean, all-reduce a copy of the loss and divide it by the number of ranks.",
    at_end=True,
)
def _shown_loss(review: Review) -> RuleResult:
    has_reduced = any(note.get("has_reduced") for notes in review.notes["end"].values() for note in notes)
    if has_reduced or {rank for rank, notes in review.notes["read"].items() if notes} != {0}:
        return None
    shares = [
        (abs(note["own"] - note["mean"]) / max(abs(note["mean"]), 1e-12), note["step"], note)
        for note in review.notes["read"][0]
        if "mean" in note
    ]
    if len(shares) < 2:
        return None
    share, step, note = max(shares, key=lambda item: item[0])
    is_part = not math.isclose(note["own"], note["value"], rel_tol=1e-6)
    description = ", the sum of its backward passes," if is_part else ""
    message = f"Rank 0 reads only its own loss: {note['own']:.4g}{description} at step {step:,}"
    message = f"{message}, while the mean over the ranks is {note['mean']:.4g}."
    return None if share < LOSS_DIFFERS else (message, note)


@remark(
    None,
    "Keep loss.detach() on the GPU, and read it only every few steps, so that the host can queue work ahead.",
)
def _reads_each_step(review: Review) -> RuleResult:
    for note in review.newest("waits").values():
        number = note["num_steps"]
        if number >= STEPS_TO_READ and note["num"] >= READS_A_STEP * number:
            waited = f"the host waited {1000 * note['waited_s'] / number:.2f} ms a step"
            message = f"The loss is read from the GPU in each step: {waited}, without queueing work"
            return f"{message} (mean of {number} steps).", note
    return None


@mistake(
    "03-same-replicas",
    "Use these parameters in the loss, remove them, or pass find_unused_parameters=True to DDP.",
    at_end=True,
)
def _unused_parameters(review: Review) -> RuleResult:
    names = next((note["unused"] for note in review.newest("end").values() if note.get("unused")), None)
    if names is None:
        return None
    names_text = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"DDP waits for gradients of parameters that the loss does not use: {names_text}.", review.first(
        "model"
    )


@remark(None, "Update the weights with an optimizer of torch.optim, whose steps are counted.")
def _no_steps(review: Review) -> RuleResult:
    message = "No optimizer of torch.optim has made a step, so the page cannot show steps, losses, progress."
    return (message, review.first("model")) if review.newest("stepless") else None


@remark(
    None,
    "Call this function last. Otherwise a rank that exits late can abort with an error.",
    at_end=True,
)
def _no_destroy(review: Review) -> RuleResult:
    ends = review.newest("end")
    is_left = all(note["status"] == spool.DONE and not note.get("is_destroyed") for note in ends.values())
    # If a library creates the group, the library also destroys it.
    if not review.first("group").get("by_script") or len(ends) < review.num_ranks or not is_left:
        return None
    return "The script ended without dist.destroy_process_group().", review.first("group")
