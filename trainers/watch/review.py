"""Findings about a running script: what its ranks do that DDP scripts should not, each with its line.

Every rule looks at what has happened, not at the text of the script. `Review` collects the notes of all
ranks and returns each finding once. A "mistake" makes results wrong or wastes the ranks; a "remark" may be
intended.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.watch import spool

# Ranks that draw from the same samples share many of them; padding of a sampler repeats a few.
SHARED_SAMPLES = 0.05
FEWEST_SHARED = 8
# Samples that are equal to each other (constant inputs, masks) cannot be told apart.
DISTINCT_SAMPLES = 0.5
SMALL_BATCH_NORM = 8
STEPS_TO_JUDGE = 5
LOSS_DIFFERS = 0.02
SLOW_READS = 0.01
LONG_EVALUATION_S = 1.0

Finding = dict[str, Any]


class Review:
    """What the ranks of a script have noted, and the findings that follow from it."""

    def __init__(self, num_ranks: int, code_dir: Path) -> None:
        self._num_ranks = num_ranks
        self._code_dir = code_dir
        self._notes: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        self._found: set[str] = set()
        self._step = 0
        self._losses: dict[int, tuple[float, ...]] = {}
        self._fingerprints: dict[int, dict[int, str]] = defaultdict(dict)

    def take_note(self, rank: int, kind: str, note: dict[str, Any]) -> None:
        """Add a note of a rank."""
        if kind == "fingerprint":
            self._fingerprints[note["step"]][rank] = note["hash"]
        elif kind not in ("sample", "log"):
            notes = self._notes[kind][rank]
            notes.append(note)
            del notes[:-200]

    def take_step(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Add one step, with the rows of its ranks."""
        self._step = int(rows[0]["step"])
        if len(rows) == self._num_ranks:
            self._losses[self._step] = tuple(row["loss"] for row in rows)
            while len(self._losses) > 200:
                del self._losses[next(iter(self._losses))]

    def found(self) -> Iterator[Finding]:
        """Yield the findings that are new."""
        yield from self._new(_WHILE_RUNNING)

    def at_end(self) -> Iterator[Finding]:
        """Yield the findings that only the end of the script shows."""
        yield from self._new((*_WHILE_RUNNING, Review.left_group, Review.shown_loss))

    def _new(self, rules: Sequence[Callable[[Review], Finding | None]]) -> Iterator[Finding]:
        for rule in rules:
            finding = rule(self)
            if finding is not None and finding["code"] not in self._found:
                self._found.add(finding["code"])
                yield finding

    def _newest(self, kind: str) -> dict[int, dict[str, Any]]:
        """Return the latest note of a kind of each rank that has one."""
        return {rank: notes[-1] for rank, notes in self._notes[kind].items() if notes}

    @property
    def _wrapper(self) -> str:
        models = self._newest("model")
        return str(models[0]["wrapper"]) if 0 in models else ""

    # Samples

    def same_samples(self) -> Finding | None:
        seen = {
            rank: [set(note["hashes"]), note["num_samples"]] for rank, note in self._newest("samples").items()
        }
        if len(seen) < self._num_ranks or self._num_ranks < 2:
            return None
        if any(len(hashes) < DISTINCT_SAMPLES * num for hashes, num in seen.values()):
            return None
        first, second = seen[0][0], seen[1][0]
        shared = len(first & second)
        if shared < max(FEWEST_SHARED, SHARED_SAMPLES * min(len(first), len(second))):
            return None
        at = self._newest("pass").get(0, {})
        percent = round(100 * shared / max(1, min(len(first), len(second))))
        return _finding(
            "same_samples",
            f"Ranks see the same samples: {percent}% of rank 1's in its first pass were also rank 0's. "
            "More ranks then repeat work instead of sharing it.",
            "Give the DataLoader a DistributedSampler(dataset), and leave out shuffle=True.",
            at,
            lesson="02-who-sees-what",
        )

    def no_set_epoch(self) -> Finding | None:
        passes = self._notes["pass"].get(0, [])
        for before, now in itertools.pairwise(passes):
            is_same = now["order"] is not None and now["order"] == before["order"]
            if is_same and now["shuffles"] and now["sampler"] == before["sampler"] == "DistributedSampler":
                return _finding(
                    "no_set_epoch",
                    f"Pass {now['number']} over the data had the same order as pass {before['number']}.",
                    "Call sampler.set_epoch(epoch) at the beginning of each epoch: it reshuffles.",
                    now,
                    lesson="02-who-sees-what",
                )
        return None

    def uneven_inputs(self) -> Finding | None:
        passes = self._newest("pass")
        counts = {
            rank: note["num_batches"] for rank, note in passes.items() if note["num_batches"] is not None
        }
        if len(counts) < self._num_ranks or len(set(counts.values())) < 2 or self._wrapper != "ddp":
            return None
        words = ", ".join(f"rank {rank} has {count}" for rank, count in sorted(counts.items()))
        return _finding(
            "uneven_inputs",
            f"The ranks have different numbers of batches in a pass: {words}. A rank with fewer leaves the "
            "others waiting in their all-reduce.",
            "Use a DistributedSampler, which pads to equal parts, or `with model.join():`.",
            passes[0],
            lesson="08-uneven-batches",
        )

    # Replicas

    def replicas_differ(self) -> Finding | None:
        for step in sorted(self._fingerprints):
            hashes = self._fingerprints[step]
            if len(hashes) < self._num_ranks or self._num_ranks < 2:
                continue
            del self._fingerprints[step]
            if len(set(hashes.values())) == 1:
                continue
            is_wrapped = self._wrapper == "ddp"
            why = (
                "The model is in DDP, so something else changes them: parameters used outside of it."
                if is_wrapped
                else "The model is not wrapped in DistributedDataParallel, so each rank trains its own."
            )
            return _finding(
                "replicas_differ",
                f"After step {step:,} the ranks' weights differ. {why}",
                "Create the optimizer with the parameters of the DDP model, and change them only by it."
                if is_wrapped
                else "Wrap the model: model = DistributedDataParallel(model), and call the wrapped one.",
                self._newest("model" if is_wrapped else "optimizer").get(0, {}),
                lesson="03-same-replicas",
            )
        return None

    def data_parallel(self) -> Finding | None:
        notes = self._newest("data_parallel")
        if not notes:
            return None
        return _finding(
            "data_parallel",
            "The script uses DataParallel: one process with a thread for each GPU.",
            "DistributedDataParallel with one process for each GPU is faster, and the only one that is "
            "developed further.",
            next(iter(notes.values())),
            lesson="01-what-a-rank-is",
        )

    def one_gpu(self) -> Finding | None:
        devices = {rank: note["device"] for rank, note in self._newest("model").items()}
        on_gpu = [device for device in devices.values() if device.startswith("cuda")]
        if len(on_gpu) < self._num_ranks or self._num_ranks < 2 or len(set(on_gpu)) > 1:
            return None
        return _finding(
            "one_gpu",
            f"All ranks are on {on_gpu[0]}: the other GPUs idle.",
            "Call torch.cuda.set_device(local_rank) before the model is created (LOCAL_RANK).",
            self._newest("optimizer").get(0, {}),
            lesson="01-what-a-rank-is",
        )

    def small_batch_norm(self) -> Finding | None:
        model, one_pass = self._newest("model").get(0), self._newest("pass").get(0)
        if model is None or one_pass is None or self._num_ranks < 2:
            return None
        batch = one_pass["batch_size"]
        if not model["num_batch_norms"] or batch is None or batch > SMALL_BATCH_NORM:
            return None
        return _finding(
            "small_batch_norm",
            f"BatchNorm averages over each rank's own batch, which has only {batch} samples.",
            "On GPUs nn.SyncBatchNorm.convert_sync_batchnorm(model) averages over all ranks; or choose "
            "larger batches.",
            model,
            level="remark",
        )

    # What ranks print, write and leave

    def same_file(self) -> Finding | None:
        writers: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        for rank, notes in self._notes["file"].items():
            for note in notes:
                writers[note["path"]][rank] = note
        for path, by_rank in writers.items():
            if len(by_rank) >= 2:
                ranks = ", ".join(map(str, sorted(by_rank)))
                return _finding(
                    "same_file",
                    f"Ranks {ranks} write the same file, {path}: its final content is left to chance.",
                    "Write it on rank 0 only: if dist.get_rank() == 0.",
                    by_rank[min(by_rank)],
                    lesson="07-rank-0-alone",
                )
        return None

    def shown_loss(self) -> Finding | None:
        if self._num_ranks < 2 or set(self._notes["read"]) != {0}:
            return None
        if any(note.get("has_reduced") for notes in self._notes["end"].values() for note in notes):
            return None
        reads = [
            note
            for note in self._notes["read"][0]
            if note["step"] + 1 in self._losses or note["step"] in self._losses
        ]
        off = []
        for note in reads:
            # The loss of a step is read before or after the step is counted.
            for step in (note["step"], note["step"] + 1):
                losses = self._losses.get(step)
                if losses and math.isclose(losses[0], note["value"], rel_tol=1e-6):
                    mean = sum(losses) / len(losses)
                    off.append((abs(losses[0] - mean) / max(abs(mean), 1e-12), losses[0], mean, step, note))
        if len(off) < 2 or max(each[0] for each in off) < LOSS_DIFFERS:
            return None
        _, own, mean, step, note = max(off, key=lambda each: each[0])
        return _finding(
            "shown_loss",
            f"The loss that rank 0 reads is its own: {own:.4g} at step {step:,}, where the mean over the "
            f"ranks is {mean:.4g}.",
            "To show the mean, all-reduce a copy of the loss and divide it by the number of ranks.",
            note,
            level="remark",
            lesson="06-whose-loss",
        )

    def evaluates_alone(self) -> Finding | None:
        if self._num_ranks < 2:
            return None
        evaluating = {
            rank
            for rank, notes in self._notes["mode"].items()
            if any(not note["is_training"] for note in notes)
        }
        spans = _spans(self._notes["mode"].get(0, []))
        if evaluating != {0} or max((end - begin for begin, end in spans), default=0.0) < LONG_EVALUATION_S:
            return None
        longest = max(end - begin for begin, end in spans)
        return _finding(
            "evaluates_alone",
            f"Only rank 0 evaluates, up to {longest:.1f} s: the others wait at their next all-reduce.",
            "Evaluate a part on each rank, and sum the counts with all_reduce.",
            next(note for note in self._notes["mode"][0] if not note["is_training"]),
            level="remark",
            lesson="07-rank-0-alone",
        )

    def slow_reads(self) -> Finding | None:
        notes = self._newest("reads")
        worst = max(notes.values(), key=lambda note: note["share"], default=None)
        if worst is None or worst["share"] < SLOW_READS or self._step < STEPS_TO_JUDGE:
            return None
        return _finding(
            "slow_reads",
            f"Reading numbers from tensors (.item()) takes {100 * worst['share']:.0f}% of the time: it waits "
            "for the device.",
            "Read the loss every few steps only, not in each step.",
            worst,
            level="remark",
        )

    def left_group(self) -> Finding | None:
        ends = self._newest("end")
        if not self._newest("group") or len(ends) < self._num_ranks:
            return None
        if any(note["status"] != spool.DONE or note.get("is_destroyed") for note in ends.values()):
            return None
        return _finding(
            "no_destroy",
            "The script ended without dist.destroy_process_group().",
            "Call it at the end: without it, a rank that exits late can abort with an error.",
            self._newest("group").get(0, {}),
            level="remark",
        )

    def rate_not_scaled(self) -> Finding | None:
        optimizer, one_pass = self._newest("optimizer").get(0), self._newest("pass").get(0)
        if optimizer is None or one_pass is None or self._num_ranks < 4 or self._step < STEPS_TO_JUDGE:
            return None
        if optimizer["name"] != "SGD" or self._wrapper != "ddp":
            return None
        return _finding(
            "rate_not_scaled",
            f"{self._num_ranks} ranks make the batch {self._num_ranks} times as large; the learning rate is "
            f"{optimizer['lr']:g}.",
            "If it was chosen for one GPU: multiply it by the number of ranks, with a warm-up.",
            optimizer,
            level="remark",
            lesson="04-global-batch",
        )


_WHILE_RUNNING: tuple[Callable[[Review], Finding | None], ...] = (
    Review.data_parallel,
    Review.one_gpu,
    Review.replicas_differ,
    Review.same_samples,
    Review.no_set_epoch,
    Review.uneven_inputs,
    Review.same_file,
    Review.small_batch_norm,
    Review.evaluates_alone,
    Review.slow_reads,
    Review.rate_not_scaled,
)


def _finding(
    code: str, message: str, hint: str, at: Mapping[str, Any], *, level: str = "mistake", lesson: str = ""
) -> Finding:
    return {
        "code": code,
        "message": message,
        "hint": hint,
        "level": level,
        "file": at.get("file"),
        "line": at.get("line"),
        "rank": None,
        "lesson": lesson or None,
    }


def _spans(notes: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return begin and end of each evaluation."""
    spans: list[tuple[float, float]] = []
    began: float | None = None
    for note in notes:
        if note["is_training"]:
            if began is not None:
                spans.append((began, note["at"]))
            began = None
        elif began is None:
            began = note["at"]
    return spans
