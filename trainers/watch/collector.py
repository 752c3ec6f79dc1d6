"""Merges the records of all ranks of a script into the events of the run, in rank 0's process."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.contract import checkpoint_files, commands, manifests
from trainers.contract.commands import Command, Incoming
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.files import plain_files
from trainers.watch import spool
from trainers.watch.review import Review
from trainers.watch.spool import Control, Row, SpoolReader

# Ranks finish a step at different times. After this time, stop waiting for a rank without steps.
MAX_WAIT_S = 3.0
REPORT_EVERY_S = 1.0
# Minimum interval between reports of the learning rates of several parameter groups.
RATES_EVERY_S = 10.0
# Maximum wait for a part of a checkpoint whose rank has already passed the checkpoint's step.
MAX_SAVE_WAIT_S = 10.0
# Number of steps after which the number of batches per step is known.
STEPS_TO_KNOW = 3
# Number of steps until a stop or a save takes effect: no rank may have passed that step already.
MIN_STEPS_AHEAD, SLOW_STEPS_AHEAD, SLOW_STEP_S = 3, 2, 1.0
AHEAD_S = 0.5
# The same time with several machines, which read the step from the shared folder.
AHEAD_ON_MACHINES_S = 2.0

Event = tuple[float, str, Mapping[str, Any]]


class Collector:
    """The events of one start of a script."""

    def __init__(self, run_dir: Path, num_ranks: int, control: Control, start_step: int = 0) -> None:
        self._run = RunDirectory(run_dir)
        self._config = self._run.read_config()
        interval = self._config.checkpoint_every_steps or 1
        self._next_checkpoint_step = (
            start_step // interval + 1
        ) * interval  # step of the next periodic checkpoint
        self._control = control
        self.num_ranks = min(num_ranks, spool.MAX_RANKS)
        self._readers = [SpoolReader(run_dir, rank) for rank in range(self.num_ranks)]
        self._steps: list[deque[Row]] = [deque() for _ in self._readers]
        self._file = EventFile(self._run.events)
        self._events: list[Event] = []
        self._review = Review(self.num_ranks)
        self._samples: dict[int, dict[str, Any]] = {}
        # Hashes of the weights by step, before (False) and after (True) the ranks have averaged them.
        self._fingerprints: dict[tuple[int, bool], dict[int, str]] = defaultdict(dict)
        self._properties: dict[str, Any] = {}
        self._reported_properties: dict[str, Any] = {}
        # Checkpoints that are being written: each rank's note, by requested step; pending save commands.
        self._parts: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self._save_commands: list[Command] = []
        self._is_save_requested = False
        self._completed = 0  # the last requested step that was saved or has failed
        self.is_publishing = False
        checkpoint_files.remove_leftovers(self._run)
        self._replaced: list[str] = []
        self._num_batches: deque[float] = deque(maxlen=50)
        self._batch_samples: deque[float] = deque(maxlen=50)
        self._rates: list[float | None] = []
        self._rates_at = -math.inf
        self._is_running = False
        self._waiting_since: float | None = None
        self._ended_unix_s = math.nan
        self._reported_at = -math.inf
        self._incoming = Incoming(self._run.commands)
        self.step = 0
        self._mean_step_s = 1.0

    def pump(self, *, is_over: bool = False) -> None:
        """Read the new records, and write events."""
        for rank, reader in enumerate(self._readers):
            self._steps[rank].extend(reader.steps())
            for note in reader.notes():
                self._add_note(rank, note)
        self._merge(is_over=is_over)
        for requested_step in list(self._parts):
            self._complete_checkpoint(requested_step, is_over=is_over)
        now = time.monotonic()
        if is_over or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._report(is_over=is_over)
        self._read_commands()
        self._request_when_due()
        if self._events:
            written = self._file.append(self._events)
            del self._events[:written]

    def close(self) -> None:
        """Write the remaining records of all ranks, and close the file."""
        deadline = time.monotonic() + MAX_WAIT_S
        while time.monotonic() < deadline and not all(
            self._control.get_rank_value(rank, spool.END)
            or not self._control.get_rank_value(rank, spool.STEP)
            for rank in range(1, self.num_ranks)
        ):
            time.sleep(0.05)
            self._control.exchange()
        self.pump(is_over=True)
        for finding in self._review.new_findings(is_over=True):
            self._add("finding", finding)
        self._answer_saves("the script ended before its next call of watch.save")
        if self._events:
            self._file.append(self._events)
        self._file.close()

    def _add(self, kind: str, fields: Mapping[str, Any], time_unix_s: float | None = None) -> None:
        self._events.append((time.time() if time_unix_s is None else time_unix_s, kind, fields))

    # Steps

    def _merge(self, *, is_over: bool) -> None:
        merged_steps: list[list[Row]] = []
        while heads := [rows[0].step for rows in self._steps if rows]:
            if len(heads) < self.num_ranks and not is_over and not self._may_continue():
                break
            self._waiting_since = None
            step = min(heads)
            merged_steps.append([rows.popleft() for rows in self._steps if rows and rows[0].step == step])
        if merged_steps:
            self._add_steps(merged_steps)

    def _may_continue(self) -> bool:
        """Return True if the ranks without a further step have ended, or the wait for them was too long."""
        missing = [rank for rank, rows in enumerate(self._steps) if not rows]
        if all(self._control.get_rank_value(rank, spool.END) for rank in missing):
            return True
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        return now - self._waiting_since > MAX_WAIT_S

    def _add_steps(self, steps: Sequence[Sequence[Row]]) -> None:
        if not self._is_running:
            self._is_running = True
            self._add(
                "state", {"state": "running", "reason": "The script has completed its first optimizer step."}
            )
        first, last = steps[0][0], steps[-1][0]
        start_unix_s = first.ended_unix_s - first.step_time_s
        elapsed_s = last.ended_unix_s - (
            start_unix_s if math.isnan(self._ended_unix_s) else self._ended_unix_s
        )
        self._ended_unix_s = last.ended_unix_s
        # Exclude an evaluation between two steps from the step time.
        elapsed_s = min(elapsed_s, sum(rank_rows[0].step_time_s for rank_rows in steps))
        # Ranks that hold parts of one model work on the same samples.
        num_counted = 1 if self._review.is_split else self.num_ranks
        step_samples = [sum([row.samples for row in rank_rows[:num_counted]]) for rank_rows in steps]
        samples = sum(step_samples)
        samples_per_s = round(samples / elapsed_s, 2) if samples and elapsed_s > 0 else None
        self._mean_step_s = max(elapsed_s, 1e-6) / len(steps)
        for rank_rows, num_samples in zip(steps, step_samples, strict=True):
            row = rank_rows[0]
            self.step = int(row.step)
            losses = [rank_row.loss for rank_row in rank_rows]
            self._review.add_step(self.step, losses)
            known_losses = [loss for loss in losses if not math.isnan(loss)]
            lr, norm = [None if math.isnan(value) else value for value in (row.lr, row.grad_norm)]
            self._add(
                "step",
                {
                    "step": self.step,
                    "epoch": int(row.epoch),
                    "loss": sum(known_losses) / len(known_losses) if known_losses else None,
                    "lr": lr,
                    "grad_norm": norm,
                    "samples_per_s": samples_per_s,
                    "step_time_s": round(row.step_time_s, 6),
                    "data_time_s": round(row.data_time_s, 6),
                },
                row.ended_unix_s,
            )
            if row.num_batches:
                self._num_batches.append(row.num_batches)
            if row.samples:
                self._batch_samples.append(num_samples)

    # Notes

    def _add_note(self, rank: int, note: dict[str, Any]) -> None:
        kind = note.pop("kind", "")
        self._review.add_note(rank, kind, note)
        if kind == "sample":
            self._samples[rank] = note
            if rank == 0 and note["rates"] and time.monotonic() - self._rates_at >= RATES_EVERY_S:
                self._rates, self._rates_at = note["rates"], time.monotonic()
        elif kind == "fingerprint":
            key = note["step"], note["is_averaged"]
            hashes = self._fingerprints[key]
            hashes[rank] = note["hash"]
            if len(hashes) == self.num_ranks:
                del self._fingerprints[key]
                ordered = [hashes[number] for number in range(self.num_ranks)]
                self._review.add_fingerprints(note, ordered)
                fields = {"step": note["step"], "hashes": ordered, "distances": [None] * self.num_ranks}
                self._add("fingerprints", fields)
        elif kind == "log":
            fields = {"step": note["step"], "epoch": note["epoch"], "loss": None, "confusion": None}
            if rank == 0:
                self._add("eval", {**fields, "metrics": note["values"]})
        elif kind == "checkpoint":
            if note["wanted"] <= self._completed:
                return  # another rank has already reported an error
            self._parts[note["wanted"]][rank] = note | {"at": time.monotonic()}
        elif kind == "replaced" and rank == 0:
            location = f", line {note['line']}" if "line" in note else ""
            self._replaced.append(f"{note['what']}{location}")
        elif rank == 0 and kind in ("model", "optimizer", "group", "pass", "buckets"):
            self._properties[kind] = note if kind != "pass" else note | {"number": None}
            if kind == "optimizer":
                self._rates = note["rates"]

    def _describe(self) -> None:
        """Report the properties of the script, initially and after each change."""
        model, data_pass = self._properties.get("model", {}), self._properties.get("pass", {})
        batches_a_step = statistics.median(self._num_batches) if self._num_batches else 1
        num_batches, num_epochs = data_pass.get("num_batches"), data_pass.get("num_epochs")
        steps_per_epoch = math.ceil(num_batches / batches_a_step) if num_batches else None
        num_steps = steps_per_epoch * num_epochs if steps_per_epoch and num_epochs else None
        if (num_loop_steps := self._properties.get("optimizer", {}).get("num_steps")) not in (
            None,
            num_steps,
        ):
            num_steps, num_epoch_steps = num_loop_steps, num_loop_steps // (num_epochs or 1)
            if steps_per_epoch is None or abs(num_epoch_steps - steps_per_epoch) > 1:
                # As in `for step in range(1000)`: the range around the loader does not count epochs.
                num_epochs = None
            else:
                # the count of the loop, which is exact about the batches after the last step
                steps_per_epoch = num_epoch_steps
        num_samples = data_pass.get("num_samples")
        fields = {
            "entry": self._config.script,
            "model": model.get("name"),
            "num_parameters": model.get("num_parameters"),
            "optimizer": self._properties.get("optimizer", {}).get("name"),
            "backend": self._properties.get("group", {}).get("backend"),
            "num_train": num_samples,
            "global_batch": round(statistics.median(self._batch_samples)) if self._batch_samples else None,
            "steps_per_epoch": steps_per_epoch,
            "num_epochs": num_epochs,
            "num_steps": num_steps,
            "replaced": self._replaced,
            "saves": bool(self._control.get(spool.SAVES)),
            "groups": [
                {"num_parameters": size, "lr": rate}
                for size, rate in zip(
                    self._properties.get("optimizer", {}).get("group_sizes", ()), self._rates, strict=False
                )
            ],
            "buckets": self._properties.get("buckets", {}).get("sizes", []),
        }
        if fields != self._reported_properties:
            self._reported_properties = {**fields, "replaced": list(self._replaced)}
            self._add("script", self._reported_properties)

    def _report(self, *, is_over: bool) -> None:
        if self.step >= STEPS_TO_KNOW or is_over:
            self._describe()
        if self._samples:
            ordered = [self._samples[rank] for rank in sorted(self._samples)]
            devices = [sample["device"] for sample in ordered]
            self._add("devices", {"devices": devices, "others_cpu_percent": None, "idle_cpu_percent": None})
            self._add("ranks", {"ranks": [sample["values"] for sample in ordered]})
        for finding in self._review.new_findings():
            self._add("finding", finding)

    # Commands

    def _read_commands(self) -> None:
        try:
            new_commands = list(self._incoming.read())
        except OSError:
            return  # the file cannot be read at the moment
        for command in new_commands:
            if isinstance(command, Command):
                self._execute(command)
                continue
            warning = {"code": "command_unreadable", "message": command.message, "hint": command.hint}
            self._add("warning", {**warning, "rank": None, "traceback": None})

    def _execute(self, command: Command) -> None:
        asks, saves = self._control.get(spool.ASKS), self._control.get(spool.SAVES)
        at_step = self._control.newest_step(self.num_ranks) + self._steps_ahead()
        if command.name == "checkpoint" and saves:
            self._request_save(at_step)
            self._save_commands.append(command)
        elif command.name != "stop":
            without = "without watch.load and watch.save " if command.name == "checkpoint" else ""
            message = f"A script {without}does not support the command {command.name}."
            self._answer(command, accepted=False, message=message)
        elif asks or saves:  # else the supervisor ends the script and answers the command
            if saves and not (self._is_save_requested and self._control.get(spool.SAVE_STEP) <= at_step):
                # No rank has reached `at_step`: a periodic checkpoint may be due only after it.
                self._is_save_requested = True
                self._control.set(spool.SAVE_STEP, at_step)
            self._control.set(spool.STOP_STEP, at_step)
            verb, action = (
                ("stop", "stops") if asks else ("save", "saves a checkpoint, and then gets SIGTERM,")
            )
            self._add(
                "state", {"state": "stopping", "reason": f"The script {action} after step {at_step:,}."}
            )
            self._answer(command, accepted=True, message=f"The script will {verb} at step {at_step:,}.")

    def _steps_ahead(self) -> int:
        is_slow = self._mean_step_s > SLOW_STEP_S
        ahead_s = AHEAD_ON_MACHINES_S if self._control.has_other_machines else AHEAD_S
        return SLOW_STEPS_AHEAD if is_slow else max(MIN_STEPS_AHEAD, math.ceil(ahead_s / self._mean_step_s))

    def _request_when_due(self) -> None:
        """Request a periodic checkpoint shortly before its step, so that a user's request can come first."""
        interval = self._config.checkpoint_every_steps
        if interval is None or self._is_save_requested or not self._control.get(spool.SAVES):
            return
        newest, ahead = self._control.newest_step(self.num_ranks), self._steps_ahead()
        if newest + 2 * ahead >= self._next_checkpoint_step:
            self._next_checkpoint_step = max(
                self._next_checkpoint_step, math.ceil((newest + ahead) / interval) * interval
            )
            self._request_save(self._next_checkpoint_step)
            self._next_checkpoint_step += interval

    def _request_save(self, at_step: int) -> None:
        # Do not change a requested step before the checkpoint is saved: some ranks may have read it.
        if not self._is_save_requested:
            self._is_save_requested = True
            self._control.set(spool.SAVE_STEP, at_step)

    def _answer_saves(self, problem: str, step: int = 0) -> None:
        for command in self._save_commands:
            message = f"Not saved: {problem}." if problem else f"Saved step {step:,}."
            self._answer(command, accepted=not problem, message=message)
        self._save_commands.clear()

    def _complete_checkpoint(self, requested_step: int, *, is_over: bool) -> None:
        """Publish a checkpoint if all ranks have written their parts; discard it if one has failed."""
        parts = self._parts[requested_step]
        errors = [f"rank {rank}: {part['problem']}" for rank, part in parts.items() if part["problem"]]
        problem = errors[0] if errors else ""
        missing = [rank for rank in range(self.num_ranks) if rank not in parts]
        steps = {part["step"] for part in parts.values()}
        step = max(steps)
        if missing and not problem:
            is_past = all(self._control.get_rank_value(rank, spool.STEP) > step for rank in missing)
            waited_s = time.monotonic() - min(part["at"] for part in parts.values())
            if not is_over and not (is_past and waited_s > MAX_SAVE_WAIT_S):
                return
            ranks = ", ".join(map(str, missing))
            problem = f"watch.save was not called by rank {ranks}; every rank must call it"
        elif len(steps) > 1:
            problem = problem or "the ranks called watch.save after different numbers of optimizer steps"
        del self._parts[requested_step]
        self._completed = requested_step
        self._is_save_requested = False
        if not problem:
            self.is_publishing = True
            try:
                self._publish(step, parts)
            except OSError as error:
                problem = checkpoint_files.root_cause(error)
            finally:
                self.is_publishing = False
        if problem:
            for saved_step in steps:
                plain_files.remove(checkpoint_files.partial_path(self._run, saved_step))
            message = f"A checkpoint was not saved: {problem}."
            is_stopping = self._control.get(spool.STOP_STEP)
            hint = "The script ends without this checkpoint." if is_stopping else "The script continues."
            warning = {"code": "checkpoint_failed", "message": message, "hint": hint}
            self._add("warning", {**warning, "rank": None, "traceback": None})
        self._answer_saves(problem, step)

    def _publish(self, step: int, parts: Mapping[int, Mapping[str, Any]]) -> None:
        stop_step, stall_s = (
            self._control.get(spool.STOP_STEP),
            max(part["stall_s"] for part in parts.values()),
        )
        metadata = {
            "strategy": manifests.SCRIPT,
            "world_size": self.num_ranks,
            "reason": "stop" if stop_step else "button" if self._save_commands else "schedule",
            "num_threads": None,
        }
        started_at = time.monotonic()
        with checkpoint_files.Sealing() as sealing:
            files = sealing.finish(checkpoint_files.partial_path(self._run, step))
        size_bytes = checkpoint_files.publish(self._run, step, metadata, files)
        keep_last = self._config.keep_last_checkpoints if metadata["reason"] == "schedule" else None
        removed = checkpoint_files.retire(self._run, step, keep_last=keep_last, best_step=None)
        fields = {"step": step, "path": f"checkpoints/step_{step}", "size_bytes": size_bytes}
        fields |= {"removed": list(removed)}
        fields |= {"duration_s": round(stall_s + time.monotonic() - started_at, 4), "stall_s": stall_s}
        self._add("checkpoint", {**fields, "reason": metadata["reason"]})

    def _answer(self, command: Command, *, accepted: bool, message: str) -> None:
        fields = {"id": command.id, "name": command.name, "step": self.step, "accepted": accepted}
        self._add("command", {**fields, "message": message, "arguments": commands.arguments_of(command)})
