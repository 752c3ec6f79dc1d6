"""Slurm's own commands, as the person would type them; what they print is read by separators."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trainers.engines.slurm import endings, jobs, partitions
from trainers.engines.slurm.endings import JobEnd
from trainers.engines.slurm.jobs import Estimates, ListedJob
from trainers.engines.slurm.partitions import Partition
from trainers.engines.slurm.remembered import Remembered, SlurmError
from trainers.machine import environment

# A controller that is down keeps squeue waiting for longer than anybody would.
TIME_LIMIT_S = 8.0
SUBMIT_LIMIT_S = 30.0
JOBS_FRESH_S = 2.0
JOBS_USABLE_S = 8.0
ACCOUNTS_LIMIT_S = 3.0
ACCOUNTS_AGAIN_S = 300.0
PARTITIONS_FRESH_S = 30.0
PLACES_FRESH_S = 30.0
SEPARATOR = "|"
# Of `scontrol show job`; any other failure says nothing about the job.
UNKNOWN_JOB = "Invalid job id"
# A person's own defaults (SQUEUE_PARTITION) would hide jobs from this program; and where the page itself runs
# in a job, that job's variables would get into those that it submits.
_NOT_FOR_SLURM = re.compile(r"(SQUEUE|SINFO|SCANCEL|SCONTROL)_|SLURM_(?!(CONF|CLUSTERS|JWT)$)")
# It waits to be started, for the first time or again.
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A job as the controller sees it.

    Attributes:
        state: in full, such as PENDING.
        reason: why it waits, in Slurm's word, such as Resources.
        nodes: the list of its hosts, as Slurm writes it.
    """

    state: str
    reason: str
    nodes: str

    @property
    def has_ended(self) -> bool:
        return self.state in endings.ENDED

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING


class Slurm:
    """The cluster, asked by commands; safe to be used by several threads.

    Args:
        variables: of the commands' environment, in addition to this process's.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._jobs = Remembered(self._ask_for_jobs, JOBS_FRESH_S, usable_s=JOBS_USABLE_S)
        self._listed = Remembered(self._ask_for_list, JOBS_FRESH_S, outlives_failures=True)
        self._places = Remembered(self._ask_for_places, PLACES_FRESH_S, outlives_failures=True)
        self._estimates = Estimates(self._ask_for_start)
        self._accounts_again_at = 0.0
        self._ends = Estimates(self._ask_for_end, first_again_s=JOBS_FRESH_S)
        self._partitions = Remembered(self._ask_for_partitions, PARTITIONS_FRESH_S, outlives_failures=True)

    def submit(self, script: str) -> str:
        """Submit a batch script; return the job's number.

        Raises:
            SlurmError: when it is refused.
        """
        said = self._ask(
            ["sbatch", "--parsable"], SUBMIT_LIMIT_S, given=script, keep=environment.FOR_NOTIFYING
        )
        self.forget()
        return said.strip().partition(";")[0]

    def cancel(self, job_id: str, signal: str | None = None) -> None:
        """End a job; with a signal, all of its processes at once.

        Raises:
            SlurmError: when the controller does not take it.
        """
        how = [] if signal is None else [f"--signal={signal}", "--full"]
        self._ask(["scancel", *how, job_id], TIME_LIMIT_S)
        self.forget()

    def find(self, job_id: str, *, afresh: bool = False) -> SlurmJob | None:
        """Return a job of this person, ended not long ago or live; None when the controller knows none.

        Args:
            afresh: ask now, even if the controller did not answer the last question.

        Raises:
            SlurmError: when the controller does not answer.
        """
        return self._jobs.get(afresh=afresh).get(job_id)

    def name_of(self, job_id: str) -> str:
        """Return the name of a job of this person; empty if the controller knows none.

        Raises:
            SlurmError: when the controller does not answer.
        """
        command = ["squeue", "--noheader", "--me", "--states=all", f"--jobs={job_id}", "--format=%j"]
        return self._ask(command, TIME_LIMIT_S).strip()

    def forget(self) -> None:
        """Ask the controller anew next time."""
        self._jobs.forget()
        self._listed.forget()
        self._places.forget()

    def listed(self) -> list[ListedJob]:
        """Return this person's jobs that have not ended; as they were known last while nobody answers.

        Raises:
            SlurmError: when the controller has not answered yet.
        """
        return self._listed.get()

    def places(self) -> jobs.Places:
        """Return the place of each job that waits, as far as this person may see others' jobs.

        Raises:
            SlurmError: when the controller has not answered yet.
        """
        return self._places.get()

    def end_of(self, job_id: str) -> JobEnd | None:
        """Return how a job ended; None while it has not, or where Slurm does not know it any more.

        Raises:
            SlurmError: when the controller does not answer.
        """
        job = self.find(job_id)
        if job is not None and not job.has_ended:
            return None
        # The accounts know who cancelled a job, and keep it for longer than the controller does.
        try:
            found = self._ends.of(job_id)
        except SlurmError:
            if job is None:
                raise
            found = None
        return found if found is not None or job is None else JobEnd(state=job.state, nodes=job.nodes)

    @property
    def jobs_silent_since_unix_s(self) -> float | None:
        """When the controller last said how this person's jobs are; None while `find` gets answers."""
        return self._jobs.silent_since_unix_s

    @property
    def jobs_answered_unix_s(self) -> float | None:
        """When the newest answer of `find` was asked for."""
        return self._jobs.asked_unix_s

    @property
    def list_silent_since_unix_s(self) -> float | None:
        """When the controller last listed this person's jobs; None while `listed` gets answers."""
        return self._listed.silent_since_unix_s

    def starts_at(self, job_id: str) -> float | None:
        """Return when a waiting job will probably start; None where Slurm does not know."""
        with contextlib.suppress(SlurmError):
            return self._estimates.of(job_id)
        return None

    def partitions(self) -> list[Partition]:
        """Return where jobs can go; as it was known last, while the controller does not answer.

        Raises:
            SlurmError: when it has not answered yet.
        """
        return self._partitions.get()

    def _ask_for_partitions(self) -> list[Partition]:
        form = ",".join(f"{column}{SEPARATOR}" for column in partitions.COLUMNS)
        said = self._ask(["sinfo", "--noheader", f"--Format={form}"], TIME_LIMIT_S)
        rows = [line.rstrip().removesuffix(SEPARATOR) for line in said.splitlines() if line.strip()]
        try:
            return partitions.read([cell.strip() for cell in row.split(SEPARATOR)] for row in rows)
        except ValueError as error:
            raise SlurmError(f"sinfo said what is not known here: {error}") from error

    def _ask_for_jobs(self) -> Mapping[str, SlurmJob]:
        form = SEPARATOR.join(("%A", "%T", "%r", "%N"))
        rows = self._rows(["squeue", "--noheader", "--me", "--states=all", f"--format={form}"])
        return {
            number: SlurmJob(state=state, reason=reason, nodes=nodes) for number, state, reason, nodes in rows
        }

    def _ask_for_list(self) -> list[ListedJob]:
        found = jobs.read(self._rows(["squeue", "--noheader", "--me", _form(jobs.COLUMNS)], jobs.TIMES))
        return [job for job in found if job.state not in endings.ENDED]

    def _ask_for_places(self) -> jobs.Places:
        command = ["squeue", "--noheader", "--states=PENDING", _form(jobs.PENDING_COLUMNS)]
        return jobs.places(self._rows(command))

    def _ask_for_start(self, job_id: str) -> float | None:
        command = ["squeue", "--noheader", "--start", f"--jobs={job_id}", _form(jobs.START_COLUMNS)]
        rows = self._rows(command, jobs.TIMES)
        return next((jobs.unix_s(starts) for number, starts in rows if number == job_id), None)

    def _ask_for_end(self, job_id: str) -> JobEnd | None:
        accounts = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
        form = f"--format={','.join(endings.ACCOUNT_COLUMNS)}"
        found = None
        if time.monotonic() >= self._accounts_again_at:
            try:
                said = self._ask([*accounts, form], ACCOUNTS_LIMIT_S, variables=jobs.TIMES)
                found = endings.from_accounts(said)
            except SlurmError:  # many clusters have no accounts, and a database that is down costs seconds
                self._accounts_again_at = time.monotonic() + ACCOUNTS_AGAIN_S
        if found is not None and found.name:
            return found
        # The accounts may be late, or lack the name of a job that was cancelled at once.
        try:
            said = self._ask(["scontrol", "--oneliner", "show", "job", job_id], TIME_LIMIT_S)
        except SlurmError as error:
            if found is None and UNKNOWN_JOB not in str(error):
                raise
            return found
        known = endings.from_controller(said)
        return known if found is None or known is None else replace(found, name=known.name)

    def _rows(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> list[list[str]]:
        said = self._ask(command, TIME_LIMIT_S, variables=variables)
        width = command[-1].count(SEPARATOR) + 1
        rows = [
            [cell.strip() for cell in line.split(SEPARATOR, width - 1)]
            for line in said.splitlines()
            if line.strip()
        ]
        return [row for row in rows if len(row) == width]

    def _ask(
        self,
        command: Sequence[str],
        limit_s: float,
        *,
        given: str | None = None,
        keep: Collection[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command without secrets: Slurm stores the environment of what is submitted.

        Args:
            keep: secrets that it is given all the same.
        """
        try:
            done = subprocess.run(
                command,
                env=environment.for_a_child(
                    {**self._variables, **(variables or {})}, keep=keep, without=_NOT_FOR_SLURM
                ),
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{command[0]} got no answer in {limit_s:.0f} s") from error
        except FileNotFoundError as error:
            raise SlurmError(f"there is no {command[0]} here: is this a login node?") from error
        if done.returncode:
            words = done.stderr.strip().splitlines()
            raise SlurmError(words[-1] if words else f"{command[0]} ended with {done.returncode}")
        return done.stdout


def _form(columns: Sequence[str]) -> str:
    return f"--format={SEPARATOR.join(columns)}"
