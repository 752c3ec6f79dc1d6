"""Tests of rank 0's reporter:

queued events are written, commands are read, and a slow disk loses only steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.harness import all_events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.report import reporter
from trainers.report.reporter import Command, NullReporter, Reporter, StepBatch


def batch_of(*numbers: int) -> StepBatch:
    """Return steps of 4 samples that took a tenth of a second each."""
    notes = [(number, 0, 0.1, 4, 0.1, 0.05) for number in numbers]
    return StepBatch(notes=notes, losses=[number / 10 for number in numbers], grad_norm=2.5)


def test_file_contains_everything_after_close_in_order(run: RunDirectory) -> None:
    voice = Reporter(run)
    voice.state("running", "")
    for start in range(0, 3000, 100):
        voice.steps(batch_of(*range(start + 1, start + 101)))
    voice.event("eval", step=3000, epoch=1, loss=1.0, metrics={"accuracy": 0.5})
    voice.state("finished", "")
    voice.close()
    found = all_events(run)
    assert [event["seq"] for event in found] == list(range(3003))
    assert [event["step"] for event in found if event["kind"] == "step"] == list(range(1, 3001))
    assert found[-1]["state"] == "finished"


def test_each_step_of_a_report_has_its_own_loss_and_the_last_the_norm() -> None:
    first, second = batch_of(1, 2).events()
    assert first == {"step": 1, "epoch": 0, "loss": 0.1, "lr": 0.1, "grad_norm": None, "samples_per_s": 40.0,
                     "step_time_s": 0.1, "data_time_s": 0.05}  # fmt: skip
    assert (second["step"], second["loss"], second["grad_norm"]) == (2, 0.2, 2.5)
    (alone,) = batch_of(1, 2).newest().events()
    assert (alone["step"], alone["loss"], alone["grad_norm"]) == (2, 0.2, 2.5)


def test_where_the_host_only_hands_out_work_the_steps_of_a_report_share_its_time() -> None:
    batch = StepBatch(
        notes=[(1, 0, 0.1, 4, 0.1, 0.0), (2, 0, 0.1, 4, 0.1, 0.0)],
        losses=[1.0, 1.0],
        waited_s=0.6,
        is_async=True,
    )
    found = list(batch.events())
    assert [event["step_time_s"] for event in found] == [0.4, 0.4]
    assert found[0]["samples_per_s"] == 10.0


def test_commands_are_heard_once_and_in_order(run: RunDirectory) -> None:
    voice = Reporter(run)
    assert voice.poll_command() is None
    first = run.append_command("checkpoint")
    second = run.append_command("stop", save=False)
    third = run.append_command("set_lr", learning_rate=0.25)
    heard = [voice.poll_command() for _ in range(4)]
    voice.close()
    assert heard == [
        Command(name="checkpoint", id=first),
        Command(name="stop", save=False, id=second),
        Command(name="set_lr", learning_rate=0.25, id=third),
        None,
    ]


def test_half_written_command_is_heard_when_it_is_whole(run: RunDirectory) -> None:
    voice = Reporter(run)
    with run.commands.open("a") as file:
        file.write('{"id":"x","na')
        file.flush()
        assert voice.poll_command() is None
        file.write('me":"pause"}\n')
    assert voice.poll_command() == Command(name="pause", id="x")
    voice.close()


def test_commands_of_an_earlier_start_are_not_heard_again(run: RunDirectory) -> None:
    run.append_command("stop")
    started_at = run.commands.stat().st_size
    voice = Reporter(run)
    assert voice.poll_command() is None
    voice.close()
    run.append_command("checkpoint")
    late = Reporter(run, commands_offset=started_at)
    command = late.poll_command()
    late.close()
    assert command is not None and command.name == "checkpoint", "given while the ranks were starting"


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "3",
        "{}",
        '{"id":"x","name":"reboot"}',
        '{"name":"stop"}',
        '{"id":"x","name":"set_lr"}',
        '{"id":"x","name":"set_lr","learning_rate":"fast"}',
        '{"id":"x","name":"set_lr","learning_rate":-1}',
        '{"id":"x","name":"set_lr","learning_rate":0}',
        '{"id":"x","name":"set_lr","learning_rate":NaN}',
        '{"id":"x","name":"set_lr","learning_rate":Infinity}',
        '{"id":"x","name":"set_lr","learning_rate":null}',
    ],
)
def test_line_that_is_no_command_is_a_warning_and_the_next_one_is_heard(run: RunDirectory, line: str) -> None:
    voice = Reporter(run)
    with run.commands.open("a") as file:
        file.write(line + "\n")
    run.append_command("pause")
    command = voice.poll_command()
    voice.close()
    assert command is not None and command.name == "pause"
    (warning,) = [event for event in all_events(run) if event["kind"] == "warning"]
    assert warning["code"] == "command_unreadable" and warning["message"]


def test_slow_disk_thins_steps_says_so_and_keeps_everything_else(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_QUEUED_STEPS", 10)
    may_write = threading.Event()
    is_writing = threading.Event()
    append = EventFile.append

    def slow_append(file: EventFile, batch: Iterable[Any]) -> int:
        is_writing.set()
        assert may_write.wait(60)
        return append(file, batch)

    monkeypatch.setattr(EventFile, "append", slow_append)
    voice = Reporter(run)
    voice.state("running", "")
    assert is_writing.wait(60)
    for number in range(1, 101):
        voice.steps(batch_of(number))
        voice.event("checkpoint", step=number)
    may_write.set()
    voice.close()
    found = all_events(run)
    assert [event["step"] for event in found if event["kind"] == "checkpoint"] == list(range(1, 101))
    steps = [event["step"] for event in found if event["kind"] == "step"]
    assert steps == list(range(1, 11))
    (warning,) = [event for event in found if event["kind"] == "warning"]
    assert warning["code"] == "steps_thinned" and warning["message"].startswith("90 step events")
    assert [event["seq"] for event in found] == list(range(len(found)))


def test_disk_that_fails_for_a_while_loses_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "RETRY_EVERY_S", 0.01)
    failures = iter([OSError("disk full")] * 3)
    append = EventFile.append

    def failing_append(file: EventFile, batch: Sequence[Any]) -> int:
        error = next(failures, None)
        if error is not None:
            raise error
        return append(file, batch[:1])  # the first part only; the next call writes the rest

    monkeypatch.setattr(EventFile, "append", failing_append)
    voice = Reporter(run)
    voice.state("starting", "")
    voice.steps(batch_of(1, 2))
    voice.state("running", "")
    voice.close()
    found = all_events(run)
    assert [event["kind"] for event in found] == ["state", "step", "step", "state"]
    assert next(failures, "used up") == "used up"


def test_other_ranks_say_and_hear_nothing(run: RunDirectory) -> None:
    silent = reporter.create(run, is_main=False)
    assert type(silent) is NullReporter
    run.append_command("stop")
    silent.state("running", "")
    silent.steps(batch_of(1))
    assert silent.poll_command() is None
    silent.close()
    assert not run.events.exists()
