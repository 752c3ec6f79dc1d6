"""Watches one run while it lives, and ends by force what does not stop or hangs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainers.contract import events
from trainers.contract.config import Config
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import final_events
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.engines.local.diagnosis.hang_watch import HangWatch
from trainers.engines.local.diagnosis.hangs import WORKING_BYTES_PER_S
from trainers.engines.local.diagnosis.ranks import Ranks
from trainers.engines.local.stopping.escalation import Escalation, Saving
from trainers.engines.local.stopping.stop_requests import StopRequests
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree

SAVING_SAMPLE_S = 0.5
LIFE_SAMPLE_S = 1.5
NODE_LOST = "node_lost"
NODES_CUT_OFF = "nodes_cut_off"


class RunGuard:
    """Reads the stop requests of a run and what its ranks do; `enforce` uses force when it is time.

    Attributes:
        commands_offset: from where in `commands.jsonl` this start of the run reads.
        unanswered: ids of the stop requests that the run has not answered yet.
        fatal: why it was ended, where it hung, or one of its machines was lost.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._requests = StopRequests(run.commands)
        self._escalation = Escalation(time.monotonic())
        self._saving_sampled_at = self._life_sampled_at = 0.0
        self._io_bytes = 0
        self._ranks: Ranks | None = None
        self._watch: HangWatch | None = None
        self._waits_on_hang = False
        self._has_said_it_waits = False
        self.commands_offset = self._requests.offset
        self.unanswered: list[str] = []
        self.fatal: Cause | None = None

    @property
    def is_stop_requested(self) -> bool:
        return self._escalation.is_stop_requested

    @property
    def is_forced(self) -> bool:
        return self._escalation.is_forced

    @property
    def was_told_to_end(self) -> bool:
        """Whether the system asked for the end, by SIGTERM."""
        return self._escalation.was_told_to_end

    def watch_ranks(self, config: Config, ranks: Ranks) -> None:
        """Watch these ranks from now on."""
        self._ranks = ranks
        self._watch = HangWatch(self._run, config, ranks)
        self._waits_on_hang = config.on_hang == "wait"

    def tell_to_end(self) -> None:
        """Note that the system wants the run to end: force is used at once."""
        self._escalation.was_told_to_end = True
        self._escalation.request_stop(time.monotonic(), save=False)

    def read_requests(self) -> None:
        """Note new stop requests: each sets the time after which force is used."""
        for request in self._requests.read():
            self.unanswered.append(request.id)
            self._escalation.request_stop(time.monotonic() - request.late_s, save=request.save)

    def note_events(self, batch: Sequence[Mapping[str, Any]], state: State) -> None:
        """Note what the run has said since it was in this state: its answers, and its new states."""
        answered = {event["id"] for event in batch if event["kind"] == "command"}
        self.unanswered = [request for request in self.unanswered if request not in answered]
        *earlier, newest = [state, *(event["state"] for event in batch if event["kind"] == "state")]
        if "stopping" in earlier and newest in ("running", "paused"):
            self._escalation.take_back()  # it could not save, so the stop was refused and it goes on
        if newest != state:
            self._escalation.state_changed(time.monotonic())

    def enforce(self, state: State, torchrun: subprocess.Popen[bytes], tree: ProcessTree) -> None:
        """Use force where a stop request was not obeyed in time, or where the run hangs."""
        self._escalate(state, torchrun, tree)
        self._check_for_lost_node(tree)
        self._check_for_hang(state, tree)

    def _escalate(self, state: State, torchrun: subprocess.Popen[bytes], tree: ProcessTree) -> None:
        now = time.monotonic()
        if self.is_stop_requested and now - self._saving_sampled_at >= SAVING_SAMPLE_S:
            self._saving_sampled_at = now
            self._escalation.note_saving(self._sample_saving(), now)
        self._sample_life(state, now)
        action = self._escalation.decide(state, now)
        if action == "terminate":
            tree.update(now=True)
            torchrun.terminate()
        elif action == "kill":
            tree.kill()

    def _sample_saving(self) -> Saving:
        num_bytes = self._run.bytes_being_saved()
        if num_bytes == 0 or self._ranks is None:
            return Saving(num_bytes=num_bytes)
        efforts = [found for rank in range(self._ranks.num_ranks) if (found := self._ranks.effort(rank))]
        before, self._io_bytes = self._io_bytes, sum(found.io_bytes for found in efforts)
        is_moving = self._io_bytes - before >= WORKING_BYTES_PER_S * SAVING_SAMPLE_S
        return Saving(
            num_bytes=num_bytes, is_at_disk=is_moving or any(found.waits_for_disk for found in efforts)
        )

    def _sample_life(self, state: State, now: float) -> None:
        """See whether the run is at work, where that decides about force; say once that it is waited for."""
        is_due = now - self._life_sampled_at >= LIFE_SAMPLE_S
        if self._watch is None or not is_due or not self._escalation.depends_on_life(state, now):
            return
        self._life_sampled_at = now
        if not self._watch.is_at_work():
            return
        self._escalation.note_life(now)
        if self._escalation.is_overdue(now) and not self._has_said_it_waits:
            self._has_said_it_waits = True
            self._warn(final_events.stop_waits())

    @property
    def has_other_machines(self) -> bool:
        return self._ranks is not None and self._ranks.num_machines > 1

    def cut_off(self) -> Cause | None:
        """Return that two machines cannot reach each other, where that was observed lately."""
        if self._ranks is None or not (words := self._ranks.cut_off()):
            return None
        hint = "Look at the network between these machines."
        return Cause(code=NODES_CUT_OFF, message=words, hint=hint)

    def why_ended(self, rank: int) -> str:
        """Return why the launcher of a rank's machine has killed it; empty where it has not."""
        return "" if self._ranks is None else self._ranks.why_ended(rank)

    def _check_for_lost_node(self, tree: ProcessTree) -> None:
        """End a run of several machines when one of them is not heard any more: it never comes back."""
        if self._ranks is None or self.fatal is not None or not (lost := self._ranks.lost_node()):
            return
        hint = "Look whether that machine is up, and whether its network and the shared folder are."
        self.fatal = Cause(code=NODE_LOST, message=lost, hint=hint)
        tree.kill()

    def _check_for_hang(self, state: State, tree: ProcessTree) -> None:
        """End a run that hangs, or say so and go on waiting, as its configuration says."""
        watch = self._watch
        if watch is None or state not in events.LIVE_STATES:
            return
        if self.is_stop_requested:
            watch.follow()
            return
        found = watch.check()
        if found is not None and (cut := self.cut_off()) is not None:
            found = replace(found, code=cut.code, message=f"{cut.message} {found.message}", hint=cut.hint)
        if found is not None and not self._waits_on_hang:
            self.fatal = found
            tree.kill()
        elif found is not None:
            hint = f"{found.hint} The run is set to wait on a hang: Stop ends it."
            self._warn(replace(found, hint=hint))
        elif watch.has_passed:
            watch.forget()
            message = "The run continues: every rank sends heartbeats again."
            self._warn(Cause(code="hang_over", message=message, hint="No action is needed."))

    def _warn(self, cause: Cause) -> None:
        """Add a warning between rank 0's own events; where the disk does not take it, to the log alone."""
        try:
            final_events.append(self._run, [("warning", cause.fields())])
        except OSError as error:
            print(
                f"this could not be written to the events: {cause.message} ({explain(error)})",
                flush=True,
            )
