"""The fault suite can fail: what is planted is found, by each of its checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import checks, table
from tests.faults.trial import Outcome, Trial, play
from tests.faults.watcher import Watcher
from tests.harness import create_run, wait_until
from tests.unit.ddp_gui.events.test_digest import steps, write_events
from tests.unit.trainers.machine.test_clock import save
from trainers.checkpoint import checkpoint_files
from trainers.checkpoint.checkpoint_files import Sealing
from trainers.contract.rundir import RunDirectory, Status


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run of ten steps that a reader has seen."""
    made = create_run(tmp_path)
    write_events(made, steps(1, 10))
    return made


def seen(run: RunDirectory) -> checks.Seen:
    """Return what a reader saw of a run."""
    watcher = Watcher(run)
    watcher.close()
    return watcher.seen()


def test_whole_run_has_lost_nothing(run: RunDirectory) -> None:
    shown = seen(run)
    assert shown.num_events == 10
    write_events(run, steps(11, 12))
    assert checks.lost_events(run, shown) == 0
    with run.events.open("ab") as file:
        file.write(b'{"seq":12,"half')
    assert checks.lost_events(run, shown) == 0, "half a line is not an event yet"


@pytest.mark.parametrize(
    ("old", "new"), [(b'"step":4,', b'"step":5,'), (b'"seq":9,', b'"seq":8,'), (b'"seq":3,', b'"seq":4,')]
)
def test_event_that_is_another_now_is_lost(run: RunDirectory, old: bytes, new: bytes) -> None:
    shown = seen(run)
    data = run.events.read_bytes()
    assert old in data
    run.events.write_bytes(data.replace(old, new))
    assert checks.lost_events(run, shown) >= 1


def test_events_that_are_gone_are_lost(run: RunDirectory) -> None:
    shown = seen(run)
    lines = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"".join(lines[:-3]))
    assert checks.lost_events(run, shown) == 3
    run.events.write_bytes(b"".join(lines[:4] + lines[5:]))
    assert checks.lost_events(run, shown) >= 1
    run.events.unlink()
    assert checks.lost_events(run, shown) == 10


def test_number_that_comes_twice_is_a_break_though_nobody_saw_it(run: RunDirectory) -> None:
    shown = seen(run)
    with run.events.open("ab") as file:
        file.write(run.events.read_bytes().splitlines(keepends=True)[-1])
    assert checks.lost_events(run, shown) == 1


def test_altered_cut_or_missing_file_of_a_checkpoint_is_bad(run: RunDirectory) -> None:
    weights = checkpoint_files.final_path(run, 3) / "model.safetensors"
    aside = checkpoint_files.partial_path(run, 3)
    aside.mkdir()
    (aside / weights.name).write_bytes(b"weights")
    with Sealing() as sealing:
        checkpoint_files.publish(run, 3, {}, sealing.finish(aside))
    assert checks.bad_checkpoints(run) == []
    for content in (b"weightS", b"weight", b""):
        weights.write_bytes(content)
        assert checks.bad_checkpoints(run) == ["step 3: model.safetensors is not what was saved"]
    weights.unlink()
    assert len(checks.bad_checkpoints(run)) == 1
    save(run, 4)
    assert "step 4: an empty manifest" in checks.bad_checkpoints(run)


def test_process_that_is_left_is_found_also_one_without_the_run_on_its_command_line(
    run: RunDirectory,
) -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", script, str(run.path)], stdin=subprocess.PIPE) as parent:
        wait_until("both", lambda: len(checks.processes_on(run)) == 2, 60.0)
        known = checks.processes_on(run)
        parent.kill()
        parent.wait()
        (orphan,) = checks.still_alive(known)
        assert orphan[0] != parent.pid
        assert parent.stdin is not None
        parent.stdin.close()
    wait_until("nobody", lambda: not checks.still_alive(known), 60.0)


def test_scene_whose_promise_is_broken_is_told_with_its_seed(tmp_path: Path) -> None:
    def says_the_wrong_thing(trial: Trial) -> None:
        made = create_run(trial.runs_dir)
        trial.watch(made)
        write_events(made, steps(1, 3))
        made.write_status(Status(state="failed", error="Errno 7"))
        trial.strike()
        trial.ends(made, "stopped", says="Rank 1")

    outcome = play("a test", says_the_wrong_thing, 7, tmp_path / "trial")
    told = " ".join(outcome.complaints)
    assert outcome.seed == 7 and not table.is_good(outcome, 15.0)
    assert "the state is failed, not stopped" in told
    assert "no plain sentence" in told and "does not say 'Rank 1'" in told
    assert not (tmp_path / "trial").exists()


def test_table_adds_up_and_goes_on_where_it_was(tmp_path: Path) -> None:
    good = Outcome(fault="x", seed=0, true_after_s=1.25)
    bad = Outcome(fault="x", seed=1, lost_events=2, processes_left=1, true_after_s=15.1, complaints=["no"])
    for outcome in (good, bad):
        table.keep(tmp_path / "kept", outcome)
    with (tmp_path / "kept").open("a") as file:
        file.write('{"fault": "x", "se')
    assert table.load(tmp_path / "kept") == [good, bad]
    assert table.row("x", [good, bad]) == "| x | 2 | 2 | 0 | 1 | 15.1 | 1 |"
    assert table.is_good(good, 15.0)
    late = Outcome(fault="x", seed=2, true_after_s=15.1)
    assert not table.is_good(late, 15.0) and table.is_good(late, 45.0)
