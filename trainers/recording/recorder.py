"""Begins a recording, and ends it: what all ranks noted comes together on one clock, in one file.

Nothing of it may end a run: what one rank cannot say is a sentence in the file, and a file that cannot be
written is a warning. All ranks begin and end at the same step, so that they meet in the few collectives here.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainers.contract import recordings
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import beats
from trainers.engines.heartbeats.heartbeat_board import SAVING
from trainers.files import private_files
from trainers.files.json_files import write_json_atomically
from trainers.machine.os_errors import explain
from trainers.parallel.gradient_buckets import BucketNotes
from trainers.parallel.process_group import World, gather_json
from trainers.parallel.strategy import Strategy
from trainers.recording import clocks, moments, rank_notes, whole
from trainers.recording.observer import RecordingObserver
from trainers.recording.profiled import Collective, CollectiveProfile
from trainers.report.observer import NullObserver
from trainers.report.reporter import NullReporter

log = logging.getLogger(__name__)

NO_FILE = "no_recording"


class Recorder:
    """One rank's part of a recording; all ranks create it at the same step.

    Args:
        put_back: lets the loop tell `usual` again.

    Attributes:
        observer: what the loop tells meanwhile.
    """

    def __init__(
        self,
        *,
        run: RunDirectory,
        world: World,
        strategy: Strategy,
        reporter: NullReporter,
        usual: NullObserver,
        num_steps: int,
        put_back: Callable[[], None],
    ) -> None:
        self._run, self._world, self._strategy, self._reporter = run, world, strategy, reporter
        self._usual, self._put_back = usual, put_back
        self._began = time.perf_counter()
        self._problem: str | None = None
        self._notes = BucketNotes()
        self._profile: CollectiveProfile | None = None
        self._tells_of_buckets = strategy.note_buckets(self._notes)
        if not self._tells_of_buckets and world.world_size > 1:
            self._begin_profile()
        self._moments = moments.of(world.device)
        self.observer = RecordingObserver(
            usual,
            self._moments,
            num_steps=num_steps,
            divides_passes=strategy.divides_passes,
            on_full=self._end,
        )

    def _begin_profile(self) -> None:
        try:
            self._profile = CollectiveProfile(self._world.device)
            self._profile.begin()
        except RuntimeError as error:
            self._profile, self._problem = None, f"the profiler could not start: {error}"

    def _end(self, why: str | None) -> None:
        """Put the usual observer back, bring all notes together, write them; every rank calls it."""
        self._put_back()
        with self._usual.standing_still():
            beats.beat(SAVING)
            self._strategy.note_buckets(None)
            parts = gather_json(self._own_part(), self._world.slow_group)
            skews = clocks.measure(self._world, [part["node"] for part in parts])
            if self._world.is_main:
                self._write(parts, skews, why)

    def _own_part(self) -> dict[str, Any]:
        collectives = self._collectives()
        buckets = () if self._tells_of_buckets else self._strategy.gradient_buckets()
        return {
            "rank": self._world.rank,
            "node": self._world.node,
            "host": socket.gethostname(),
            "problem": self._problem,
            **rank_notes.of(
                self.observer.steps,
                self._moments,
                averaged=self._notes.averaged,
                collectives=collectives,
                buckets=buckets,
            ),
        }

    def _collectives(self) -> list[Collective]:
        if self._profile is None:
            return []
        try:
            return self._profile.end()
        except (RuntimeError, ValueError, AttributeError) as error:
            self._problem = f"the profiler has said nothing that can be used: {error}"
            return []

    def _write(self, parts: Sequence[dict[str, Any]], skews: dict[int, clocks.Skew], why: str | None) -> None:
        try:
            recording = whole.of(parts, skews, self._strategy, self._world, ended_early=why)
            path = recordings.path_of(self._run, recording["first_step"])
            private_files.require_ours(self._run.path)
            path.parent.mkdir(exist_ok=True)
            private_files.require_ours(path.parent)
            write_json_atomically(path, recording, indent=None)
        except (OSError, ValueError) as error:
            log.warning("no recording: %s", explain(error))
            message = f"The steps that were recorded could not be kept: {explain(error)}"
            self._reporter.warning(NO_FILE, message, "Training is not affected.")
            return
        self._reporter.event(
            "recording",
            step=recording["first_step"],
            num_steps=recording["num_steps"],
            path=str(path.relative_to(self._run.path)),
            size_bytes=path.stat().st_size,
            duration_s=round(time.perf_counter() - self._began, 4),
        )
