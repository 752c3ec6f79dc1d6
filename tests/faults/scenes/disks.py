"""Full, read-only and missing disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.page import Page
from tests.faults.registry import add
from tests.faults.trial import PATIENCE_S, CannotBePlayedError, Trial
from tests.harness import wait_until
from trainers.engines import liveness

DISK_MB = 12


@contextlib.contextmanager
def small_disk(trial: Trial, *, fails: bool = False) -> Iterator[Path]:
    """Mount a small file system for the runs of this trial: tmpfs, or ext4 if it must be able to fail."""
    if os.geteuid() != 0:
        raise CannotBePlayedError("a small disk has to be mounted, and that needs root")
    folder = trial.runs_dir
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs"]
    if fails:
        image = trial.folder / "disk.img"
        image.touch()
        os.truncate(image, 4 * DISK_MB * 2**20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image)]
    mounted = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise CannotBePlayedError(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        trial.launcher.close()
        trial.stop_watching()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk until no byte is free."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        about = os.statvfs(folder)
        file.write(b"x" * (about.f_bavail * about.f_frsize))
        while True:
            file.write(b"x" * 512)
    return ballast


def _full_while_events_are_written(trial: Trial) -> None:
    with small_disk(trial) as disk:
        live = trial.start_and_wait(checkpoint_every_steps=10**6)
        time.sleep(trial.dice.uniform(0.0, 1.0))
        trial.strike()
        ballast = fill(disk)
        size = live.run.events.stat().st_size
        time.sleep(trial.dice.uniform(1.0, 3.0))
        trial.expect(
            liveness.read_status(live.run).state == "running", f"it is {liveness.read_status(live.run)}"
        )
        trial.expect(live.run.events.stat().st_size - size < 10_000, "the disk was not full")
        if trial.dice.random() < 0.5:
            trial.strike()
            live.rank(1).kill()  # a rank also dies, and the final events do not fit on the disk
            trial.ends(live.run, "failed", "lost", says="Rank 1 was killed|gone, so the run ended")
            ballast.unlink()
        else:
            ballast.unlink()
            trial.strike()
            trial.goes_on(live)
            trial.stop(live)
        trial.conclude()


def _read_only(trial: Trial) -> None:
    """A disk error makes ext4 read-only: the page reports it, and Stop without saving still works."""
    with small_disk(trial, fails=True) as disk:
        live = trial.start_and_wait_a_while()
        page = Page(trial.runs_dir)
        page.said_of(live.run.run_id)
        trial.strike()
        subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)
        wait_until("the page saying so", lambda: "cannot be written" in page.said_of(live.run.run_id), 30.0)
        trial.is_true_now()
        trial.strike()
        page.stop(live.run.run_id, save=False)
        live.reap()
        trial.ends(live.run, "lost", "stopped", says="gone, so the run ended")
        trial.conclude(is_resumed=False)


def _deleted(trial: Trial) -> None:
    live = trial.start_and_wait_a_while()
    trial.strike()
    # Files written during the deletion may remain, as after a manual `rm -r`.
    shutil.rmtree(live.run.path, ignore_errors=True)
    live.reap()
    watcher = trial.watched[live.run.run_id][1]
    wait_until("nothing of the run being left", lambda: not watcher.processes_left(), PATIENCE_S)
    trial.is_true_now()
    shutil.rmtree(live.run.path, ignore_errors=True)
    time.sleep(0.5)
    trial.expect(not live.run.path.exists(), f"there is something again: {list(live.run.path.rglob('*'))}")


add("disk full while events are written", _full_while_events_are_written)
add("run directory becomes read-only (an ext4 after an error)", _read_only)
add("run directory deleted", _deleted)
