"""Merges what all ranks of a script have written into the events of the run, in rank 0's process."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.contract import commands
from trainers.contract.commands import Command
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import parse_json, read_lines
from trainers.files.private_files import open_own
from trainers.watch import spool
from trainers.watch.review import Review
from trainers.watch.spool import Control, SpoolReader

# The ranks of one step may come at different times; a rank without steps is not waited for any longer.
MOST_WAIT_S = 3.0
REPORT_EVERY_S = 1.0
# After this many steps, the number of backward passes in a step is known.
STEPS_TO_KNOW = 3
# Steps until a stop or a save takes effect: no rank may have done more when it learns of it.
FEWEST_STEPS_AHEAD, OF_SLOW_STEPS, SLOW_STEP_S = 3, 2, 1.0
AHEAD_S = 0.5

Item = tuple[float, str, Mapping[str, Any]]


class Collector:
    """The events of one start of a script."""

    def __init__(self, run_dir: Path, num_ranks: int, control: Control) -> None:
        self._run = RunDirectory(run_dir)
        self._entry = self._run.read_config().script
        self._control = control
        self.num_ranks = min(num_ranks, spool.MAX_RANKS)
        self._readers = [SpoolReader(run_dir, rank) for rank in range(self.num_ranks)]
        self._steps: list[deque[Mapping[str, float]]] = [deque() for _ in self._readers]
        self._file = EventFile(self._run.events)
        self._events: list[Item] = []
        self._review = Review(self.num_ranks)
        self._samples: dict[int, dict[str, Any]] = {}
        self._fingerprints: dict[int, dict[int, str]] = defaultdict(dict)
        self._about: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._replaced: list[str] = []
        self._num_backwards: deque[float] = deque(maxlen=50)
        self._batch_samples: deque[float] = deque(maxlen=50)
        self._is_running = False
        self._waiting_since: float | None = None
        self._ended_unix_s = math.nan
        self._reported_at = -math.inf
        self._commands_offset = self._run.commands.stat().st_size if self._run.commands.exists() else 0
        self.step = 0
        self._pace_s = 1.0

    def pump(self, *, is_over: bool = False) -> None:
        """Read what is new, and write events."""
        for rank, reader in enumerate(self._readers):
            self._steps[rank].extend(reader.steps())
            for note in reader.notes():
                self._take_note(rank, note)
        self._merge(is_over=is_over)
        now = time.monotonic()
        if is_over or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._report()
        self._read_commands()
        if self._events:
            written = self._file.append(self._events)
            del self._events[:written]

    def close(self) -> None:
        """Write what the other ranks have reported by now, and close the file."""
        deadline = time.monotonic() + MOST_WAIT_S
        while time.monotonic() < deadline and not all(
            self._control.of_rank(rank, spool.END) or not self._control.of_rank(rank, spool.STEP)
            for rank in range(1, self.num_ranks)
        ):
            time.sleep(0.05)
        self.pump(is_over=True)
        for finding in self._review.found(is_over=True):
            self._add("finding", finding)
        if self._events:
            self._file.append(self._events)
        self._file.close()

    def _add(self, kind: str, fields: Mapping[str, Any], at: float | None = None) -> None:
        self._events.append((time.time() if at is None else at, kind, fields))

    # Steps

    def _merge(self, *, is_over: bool) -> None:
        done: list[list[Mapping[str, float]]] = []
        while any(self._steps):
            missing = [rank for rank, rows in enumerate(self._steps) if not rows]
            if missing and not is_over and not self._may_go_on_without(missing):
                break
            self._waiting_since = None
            step = min(rows[0]["step"] for rows in self._steps if rows)
            done.append([rows.popleft() for rows in self._steps if rows and rows[0]["step"] == step])
        if done:
            self._add_steps(done)

    def _may_go_on_without(self, missing: Sequence[int]) -> bool:
        """True if the ranks without a step have ended, or have kept the others waiting for long."""
        if all(self._control.of_rank(rank, spool.END) for rank in missing):
            return True
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        return now - self._waiting_since > MOST_WAIT_S

    def _add_steps(self, done: Sequence[Sequence[Mapping[str, float]]]) -> None:
        if not self._is_running:
            self._is_running = True
            self._add(
                "state", {"state": "running", "reason": "The script has done its first optimizer step."}
            )
        first, last = done[0][0], done[-1][0]
        began = first["ended_unix_s"] - first["step_time_s"]
        seconds = last["ended_unix_s"] - (began if math.isnan(self._ended_unix_s) else self._ended_unix_s)
        self._ended_unix_s = last["ended_unix_s"]
        # An evaluation between two steps does not belong to them.
        seconds = min(seconds, sum(ranks[0]["step_time_s"] for ranks in done))
        samples = sum(row["samples"] for ranks in done for row in ranks)
        samples_per_s = round(samples / seconds, 2) if samples and seconds > 0 else None
        self._pace_s = max(seconds, 1e-6) / len(done)
        for ranks in done:
            row = ranks[0]
            self.step = int(row["step"])
            losses = [each["loss"] for each in ranks if not math.isnan(each["loss"])]
            self._add(
                "step",
                {
                    "step": self.step,
                    "epoch": int(row["epoch"]),
                    "loss": sum(losses) / len(losses) if losses else None,
                    "lr": _known(row["lr"]),
                    "grad_norm": _known(row["grad_norm"]),
                    "samples_per_s": samples_per_s,
                    "step_time_s": round(row["step_time_s"], 6),
                    "data_time_s": round(row["data_time_s"], 6),
                },
                row["ended_unix_s"],
            )
            self._num_backwards.append(row["num_backwards"])
            if row["samples"]:
                self._batch_samples.append(sum(each["samples"] for each in ranks))
            self._review.take_step(ranks)
        if self.step >= STEPS_TO_KNOW:
            self._describe()

    # Notes

    def _take_note(self, rank: int, note: dict[str, Any]) -> None:
        kind = note.pop("kind", "")
        self._review.take_note(rank, kind, note)
        if kind == "sample":
            self._samples[rank] = note
        elif kind == "fingerprint":
            hashes = self._fingerprints[note["step"]]
            hashes[rank] = note["hash"]
            if len(hashes) == self.num_ranks:
                del self._fingerprints[note["step"]]
                ordered = [hashes[each] for each in range(self.num_ranks)]
                fields = {"step": note["step"], "hashes": ordered, "distances": [None] * self.num_ranks}
                self._add("fingerprints", fields)
        elif kind == "log":
            fields = {"step": note["step"], "epoch": note["epoch"], "loss": None, "confusion": None}
            if rank == 0:
                self._add("eval", {**fields, "metrics": note["values"]})
        elif kind == "replaced" and rank == 0:
            where = f", line {note['line']}" if "line" in note else ""
            self._replaced.append(f"{note['what']}{where}")
        elif rank == 0 and kind in ("model", "optimizer", "group", "pass"):
            self._about[kind] = note if kind != "pass" else note | {"number": None}

    def _describe(self) -> None:
        """Report what is known about the script as a whole, once and after each change."""
        model, one_pass = self._about.get("model", {}), self._about.get("pass", {})
        num_backwards = statistics.median(self._num_backwards) if self._num_backwards else 1
        num_batches, num_epochs = one_pass.get("num_batches"), one_pass.get("num_epochs")
        steps_per_epoch = math.ceil(num_batches / max(1, num_backwards)) if num_batches else None
        num_samples = one_pass.get("num_samples")
        fields = {
            "entry": self._entry,
            "model": model.get("name"),
            "num_parameters": model.get("num_parameters"),
            "optimizer": self._about.get("optimizer", {}).get("name"),
            "backend": self._about.get("group", {}).get("backend"),
            "num_train": num_samples,
            "global_batch": round(statistics.median(self._batch_samples)) if self._batch_samples else None,
            "steps_per_epoch": steps_per_epoch,
            "num_epochs": num_epochs,
            "num_steps": steps_per_epoch * num_epochs if steps_per_epoch and num_epochs else None,
            "replaced": self._replaced,
        }
        if fields != self._told:
            self._told = {**fields, "replaced": list(self._replaced)}
            self._add("script", self._told)

    def _report(self) -> None:
        if self._samples:
            ordered = [self._samples[rank] for rank in sorted(self._samples)]
            devices = [each["device"] for each in ordered]
            self._add("devices", {"devices": devices, "others_cpu_percent": None, "idle_cpu_percent": None})
            self._add("ranks", {"ranks": [each["values"] for each in ordered]})
        for finding in self._review.found():
            self._add("finding", finding)

    # Commands

    def _read_commands(self) -> None:
        try:
            if self._run.commands.stat().st_size <= self._commands_offset:
                return
            with open_own(self._run.commands) as file:
                lines, self._commands_offset = read_lines(file, self._commands_offset)
        except OSError:
            return  # it cannot be read now
        for line in lines.splitlines():
            try:
                self._obey(commands.parse(parse_json(line)))
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
                words = {"message": f"A command could not be read: {error}", "hint": "It was ignored."}
                self._add("warning", {"code": "command_unreadable", **words, "rank": None, "traceback": None})

    def _obey(self, command: Command) -> None:
        if command.name != "stop":
            self._answer(
                command, accepted=False, message=f"A script does not take the command {command.name}."
            )
        elif self._control.get(spool.ASKS):  # otherwise the supervisor ends the script, and answers
            is_slow = self._pace_s > SLOW_STEP_S
            ahead = OF_SLOW_STEPS if is_slow else max(FEWEST_STEPS_AHEAD, math.ceil(AHEAD_S / self._pace_s))
            at_step = self._control.newest_step(self.num_ranks) + ahead
            self._control.set(spool.STOP_STEP, at_step)
            self._add("state", {"state": "stopping", "reason": f"The script stops after step {at_step:,}."})
            self._answer(command, accepted=True, message=f"The script is told to stop at step {at_step:,}.")

    def _answer(self, command: Command, *, accepted: bool, message: str) -> None:
        fields = {"id": command.id, "name": command.name, "step": self.step, "accepted": accepted}
        self._add("command", {**fields, "message": message, "arguments": commands.arguments_of(command)})


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
