"""What an engine is: the only part that knows how a run's processes are started, watched and ended.

The page and the queue know a run directory and this. All that an engine has to do with a run beyond it goes
through files: it starts `trainers.worker` on every rank with torchrun, and keeps `status.json`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from trainers.contract.config import Config, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, Status
from trainers.contract.tickets import Ticket
from trainers.engines.reports import AskedField, Capacity, Choice, EngineQueue, HostReport, LinkReport

# An engine takes a run that it was given within this time, or the start has failed.
HANDSHAKE_S = 20.0


class StartError(RuntimeError):
    """A run did not come up; says why."""


class Launch(ABC):
    """One start of a run, from the order to its end."""

    @abstractmethod
    def wait_until_owned(self) -> None:
        """Wait until the engine has taken the run: from then on its status says what becomes of it.

        Raises:
            StartError: when it cannot.
        """

    @abstractmethod
    def wait_for_end(self) -> None:
        """Wait until nothing of this start is left."""


class Engine(ABC):
    """One way to run jobs; safe to be called by several threads."""

    name: ClassVar[str]
    # It decides by itself when a run starts, so the page's queue hands each on at once.
    has_queue: ClassVar[bool] = False
    # A run is submitted as a script.
    has_scripts: ClassVar[bool] = False
    # Where a run waits that it has taken, in words.
    waits_where: ClassVar[str] = "in the cluster's queue"
    # It knows the machines of its runs by name, and reports on them.
    has_hosts: ClassVar[bool] = False
    # It can kill a single rank, for who wants to see what becomes of the others.
    kills_ranks: ClassVar[bool] = False

    @abstractmethod
    def capacity(self) -> Capacity:
        """Return what it can give a run now."""

    @abstractmethod
    def check(self, config: Config) -> list[Problem]:
        """Return what in a configuration it cannot do, before anything is started."""

    @abstractmethod
    def start(self, run: RunDirectory, ticket: Ticket) -> Launch:
        """Start a run that was given what its ticket says.

        Raises:
            OSError: when its files cannot be written.
            ValueError: when it may not be started.
        """

    @abstractmethod
    def is_alive(self, run: RunDirectory, handle: Handle) -> bool | None:
        """Tell whether somebody looks after a run now; None where that cannot be found out."""

    @abstractmethod
    def stop(self, run: RunDirectory, *, save: bool, why: str = "") -> str:
        """Have a live run end, after a save where that is asked for; return the command's id.

        Returns at once. What does not obey is ended by force, in the time that the engine promises.

        Raises:
            OSError: when the run's folder cannot be written.
            ValueError: when it may not be stopped.
        """

    @abstractmethod
    def kill(self, run: RunDirectory) -> None:
        """End every process of a live run now, without a save; on return its status says so."""

    def kill_rank(self, run: RunDirectory, rank: int) -> None:
        """Kill the process of one rank now (SIGKILL): the run then fails, as it would by itself.

        Raises:
            ValueError: when this engine cannot, or the rank has no process.
            OSError: when the run's folder cannot be written.
        """
        del run, rank
        raise ValueError(
            f"a single rank can be killed from here only on this machine; this run is on {self.name}"
        )

    @abstractmethod
    def logs(self, run: RunDirectory) -> list[Path]:
        """Return what the run's processes have written, rank 0 first."""

    @abstractmethod
    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        """Return the command that does the same by hand, in the project's folder.

        It makes a new run in `run_dir`; with `resume_step` it resumes the one that is there.
        """

    def script_of(self, run: RunDirectory) -> str | None:
        """Return the script that a run was submitted with; None where there is none."""
        del run
        return None

    def is_waiting(self, handle: Handle) -> bool:
        """Tell whether a run that it has taken waits to be started, for the first time or again."""
        del handle
        return False

    # An engine that has more than one place for a run. Most have one.

    def capacity_for(self, config: Config) -> Capacity:
        """Return what it can give a run of this configuration, which may name a place."""
        del config
        return self.capacity()

    def asks(self) -> Mapping[str, AskedField]:
        """Return the fields that say where a run trains and that a person may choose, by name."""
        return {}

    def choices(self, config: Config) -> Mapping[str, tuple[Choice, ...]]:
        """Return what can be chosen now in those of these fields whose choices change."""
        del config
        return {}

    def script(self, config: Config, run_dir: Path, resume_step: int | None = None) -> str | None:
        """Return the job of a run as the script that would be submitted; None where there is none.

        Raises:
            ValueError: when a value cannot stand in a script.
        """
        del config, run_dir, resume_step
        return None

    def why_it_waits(self, handle: Handle) -> str | None:
        """Return in words why a run that it has taken waits; None where no run waits for it."""
        del handle
        return None

    def silence(self, handle: Handle) -> str | None:
        """Return in words since when nothing is known of a live run's processes; None: they are known of."""
        del handle
        return None

    def detail(self, handle: Handle) -> str | None:
        """Return in a few words why the processes of a live run stand still; None: they do not."""
        del handle
        return None

    def ended_status(self, run: RunDirectory, status: Status) -> Status:
        """Return the status of a run that has ended, completed by what this engine knows of its end.

        Args:
            status: `lost` if the run wrote no end itself.
        """
        del run
        return status

    def queue(self) -> EngineQueue | None:
        """Return the person's jobs in its own queue; None where it has none of its own."""
        return None

    def place_of(self, handle: Handle) -> str | None:
        """Return in words where in its own queue a run waits; None where that is not known."""
        del handle
        return None

    def starts_at(self, handle: Handle) -> float | None:
        """Return when a run that waits will probably start; None where that is not known."""
        del handle
        return None

    def host_reports(self, runs_dir: Path) -> Sequence[HostReport] | None:
        """Return what its machines have and whether they fit together, in seconds; None: it names none.

        Raises:
            OSError: when the folder of the runs takes no file.
        """
        del runs_dir
        return None

    def links(self) -> Sequence[tuple[str, str]]:
        """Return the pairs of machines between which it can measure; none: it names no machines."""
        return ()

    def measure_link(self, first: str, second: str) -> LinkReport:
        """Measure real all-reduces between two of its machines, which takes some seconds.

        Raises:
            ValueError: when it has no such machines.
        """
        raise ValueError(f"{self.name} names no machines, so none that are {first} and {second}")

    # What an engine may keep ready, so that a run starts sooner. Most keep nothing.

    def begin(self) -> None:  # noqa: B027
        """Keep ready from now on what is expected, until `close`."""

    def close(self) -> None:  # noqa: B027
        """Let go what is kept ready."""

    def expect(self, num_ranks: int) -> None:  # noqa: B027
        """Hear that somebody may soon start a run of so many ranks."""

    def note_running(self, is_anything_running: bool) -> None:  # noqa: B027
        """Hear whether runs go on: then they have all of the machine."""

    def kept_ready(self) -> Mapping[str, int] | None:
        """Return how many ranks wait and the bytes they hold in all; None where none do."""
        return None

    def own_processes(self) -> Mapping[int, float]:
        """Return the processes on this machine that belong to no run yet, with when each was started."""
        return {}
