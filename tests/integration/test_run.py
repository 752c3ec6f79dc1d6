"""A complete run: the files it writes, and a manual start with torchrun."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil

from ddp_gui.launch import launcher as launcher_module
from tests.harness import (
    ANSWER_TIMEOUT_S,
    END_TIMEOUT_S,
    REPOSITORY,
    Launcher,
    LiveRun,
    all_events,
    create_run,
    processes_of,
    torchrun_of,
    wait_until,
)
from tests.integration.conftest import REFERENCE, REFERENCE_STEPS
from tests.torch_template import SUPERVISOR, ForkedProgram
from trainers.contract import checkpoint_files, events
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local import torchrun
from trainers.engines.local.engine import LocalEngine
from trainers.machine import threads
from trainers.parallel.process_group import num_cores_to_use


def test_run_goes_from_starting_over_running_to_finished(finished_run: LiveRun) -> None:
    status = liveness.read_status(finished_run.run)
    assert finished_run.states() == ["starting", "running", "finished"], finished_run.story()
    assert (status.state, status.exit_code, status.error) == ("finished", 0, None)
    assert status.started_unix_s is not None and status.ended_unix_s is not None
    assert 0 < status.ended_unix_s - status.started_unix_s < END_TIMEOUT_S
    assert status.pid == finished_run.supervisor.pid
    assert not finished_run.run.is_locked()


def test_every_event_has_exactly_the_fields_of_its_kind(finished_run: LiveRun) -> None:
    for event in finished_run.events():
        assert tuple(event) == events.COMMON_FIELDS + events.FIELDS[event["kind"]]
    kinds = {"state", "plan", "step", "eval", "devices", "ranks", "checkpoint", "sample", "fingerprints"}
    assert kinds == {event["kind"] for event in finished_run.events()}


def test_plan_says_how_long_the_run_is_on_the_data_that_is_there(launcher: Launcher) -> None:
    """The page expects austen's default length; samples that are four times as long are a quarter as many."""
    live = launcher.start(dataset="austen", model="gpt", sequence_length=256, num_epochs=3, max_steps=2)
    assert live.wait_for_end().state == "finished", live.story()
    (plan,) = live.events("plan")
    assert plan["num_train"] == 15_210 and plan["global_batch"] == 64
    assert plan["steps_per_epoch"] == 238 and plan["num_steps"] == 2
    assert plan["num_parameters"] > 400_000
    assert plan["class_names"] is None, "letters are no classes to be told apart"
    assert live.events("eval")[-1]["confusion"] is None


def test_the_plan_says_what_gradients_are_really_averaged_over(
    finished_run: LiveRun, launcher: Launcher
) -> None:
    (plan,) = finished_run.events("plan")
    assert plan["all_reduce"] == "shared_memory"
    for config, said in (({"all_reduce": "backend"}, "gloo"), ({"nproc_per_node": 1}, None)):
        live = launcher.start(max_steps=20, **config)
        assert live.wait_for_end().state == "finished", live.story()
        (plan,) = live.events("plan")
        assert plan["all_reduce"] == said
        if said == "gloo":
            usual = finished_run.losses()
            assert live.losses() == {step: usual[step] for step in range(1, 21)}, "two addends, the same bits"


def test_confusion_counts_every_validation_sample_under_the_names_of_the_plan(finished_run: LiveRun) -> None:
    (plan,) = finished_run.events("plan")
    assert plan["class_names"] == [str(digit) for digit in range(10)]
    for event in finished_run.events("eval"):
        rows = event["confusion"]
        assert [len(row) for row in rows] == [10] * 10
        assert sum(map(sum, rows)) == plan["num_validation"] == 360
        num_right = sum(row[number] for number, row in enumerate(rows))
        assert event["metrics"]["accuracy"] == num_right / 360


def test_events_are_numbered_without_gaps(finished_run: LiveRun) -> None:
    numbers = [event["seq"] for event in finished_run.events()]
    assert numbers == list(range(len(numbers)))


def test_every_step_is_reported_once_and_in_order_also_the_last_ones(finished_run: LiveRun) -> None:
    assert [event["step"] for event in finished_run.events("step")] == list(range(1, REFERENCE_STEPS + 1))


def test_times_of_steps_are_positive_also_after_an_evaluation(finished_run: LiveRun) -> None:
    for event in finished_run.events("step"):
        assert event["step_time_s"] > 0, event
        assert 0 <= event["data_time_s"] <= event["step_time_s"], event
        assert event["samples_per_s"] > 0, event


def test_loss_falls_and_accuracy_rises(finished_run: LiveRun) -> None:
    losses = finished_run.losses()
    assert losses[1] > 2.0 and losses[REFERENCE_STEPS] < 0.2
    accuracies = [event["metrics"]["accuracy"] for event in finished_run.events("eval")]
    assert accuracies[-1] > 0.9


def test_evaluation_and_checkpoints_come_at_the_steps_asked_for(finished_run: LiveRun) -> None:
    assert [event["step"] for event in finished_run.events("eval")] == [100, 200, 300, 400, 500, 600]
    saved = [(event["step"], event["reason"]) for event in finished_run.events("checkpoint")]
    assert [step for step, reason in saved if reason == "schedule"] == [250, 500]
    assert saved[-1] in [(600, "end"), (600, "best")]
    accuracies = {event["step"]: event["metrics"]["accuracy"] for event in finished_run.events("eval")}
    records = [
        step
        for step, value in accuracies.items()
        if all(value > accuracies[s] for s in accuracies if s < step)
    ]
    best = [step for step, reason in saved if reason == "best"]
    assert best == [step for step in records if step not in (500,)], "saved whenever it was the best so far"


def test_checkpoint_events_tell_the_truth_about_the_folder(finished_run: LiveRun) -> None:
    run = finished_run.run
    listed = {item.step: item for item in run.list_checkpoints()}
    removed = {step for event in finished_run.events("checkpoint") for step in event["removed"]}
    assert sorted(listed) == sorted({e["step"] for e in finished_run.events("checkpoint")} - removed)
    for event in finished_run.events("checkpoint"):
        if event["step"] in removed:
            continue
        checkpoint_files.verify(run, event["step"])
        path = run.path / event["path"]
        assert path == listed[event["step"]].path
        files = [file for file in path.iterdir() if file.name != "manifest.json"]
        assert event["size_bytes"] == sum(file.stat().st_size for file in files)
        assert 0 < event["stall_s"] <= event["duration_s"] + 1e-3


def test_devices_and_ranks_name_every_rank(launcher: Launcher) -> None:
    """Reported once a second and at the start. A short run may only contain reports from before the first
    step.
    """
    live = launcher.start(num_epochs=100_000)
    live.wait_for("ranks", lambda event: [rank["step"] > 0 for rank in event["ranks"]] == [True] * 2)
    devices = live.events("devices")[-1]["devices"]
    assert [tuple(device) for device in devices] == [events.DEVICE_FIELDS] * 2
    assert [(device["rank"], device["kind"]) for device in devices] == [(0, "cpu"), (1, "cpu")]
    assert all(device["memory_used_bytes"] > 1_000_000 for device in devices)
    assert all(device["temperature_celsius"] is None for device in devices), "a missing reading is null"
    ranks = live.events("ranks")[-1]["ranks"]
    # Only scripts report a loss per rank.
    assert [(*rank, "loss") for rank in ranks] == [events.RANK_FIELDS] * 2
    assert all(50_000_000 < rank["base_memory_bytes"] < rank["peak_memory_bytes"] for rank in ranks)
    live.ask("stop", save=False)
    assert live.wait_for_end().state == "stopped", live.story()


def test_each_rank_has_its_log_and_no_process_is_left(finished_run: LiveRun) -> None:
    assert finished_run.run.rank_log(0).exists() and finished_run.run.rank_log(1).exists()
    assert processes_of(finished_run.run) == []


def in_an_empty_terminal(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command copied from the page in a shell without this project's environment."""
    terminal = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]}
    return subprocess.run(
        ["bash", "-c", command],
        cwd="/",
        env=terminal,
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
    )


def test_the_copied_commands_run_as_they_are_in_an_empty_terminal(tmp_path: Path) -> None:
    runs_dir = tmp_path / "my runs"
    config = Config(dataset="digits", model="mlp", device="cpu", nproc_per_node=2, max_steps=30, name="it's")
    copied = launcher_module.train_command(LocalEngine(), config, runs_dir)
    ended = in_an_empty_terminal(copied)
    assert ended.returncode == 0, ended.stderr[-2000:]
    (path,) = runs_dir.iterdir()
    run = RunDirectory(path)
    assert run.read_config() == config
    assert [event["step"] for event in all_events(run) if event["kind"] == "step"] == list(range(1, 31))
    newest = max(item.step for item in run.list_checkpoints())
    longer = json.loads(run.config.read_text()) | {"max_steps": 40}
    run.config.write_text(json.dumps(longer))
    ended = in_an_empty_terminal(launcher_module.resume_command(LocalEngine(), run, newest))
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert all_events(run)[-1]["state"] == "finished"
    assert [event["step"] for event in all_events(run) if event["kind"] == "step"] == list(range(1, 41))


def test_a_command_makes_no_run_over_another_and_none_of_nonsense(tmp_path: Path) -> None:
    there = tmp_path / "there-1"
    there.mkdir()
    for arguments, words in (
        ([str(there), "--config", "{}"], "already exists: choose another name"),
        ([str(tmp_path / "new-1"), "--config", '{"batch_size": "many"}'], "batch_size"),
    ):
        ended = subprocess.run(
            [*torchrun_of(1, "trainers.worker"), *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=END_TIMEOUT_S,
            check=False,
        )
        assert ended.returncode != 0 and words in ended.stderr, ended.stderr[-2000:]
    assert list(there.iterdir()) == [] and not (tmp_path / "new-1").exists()


def shown(process: psutil.Process) -> str:
    """Return the command line that ps shows."""
    command = ["ps", "-o", "args=", "-p", str(process.pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_ranks_are_forked_from_torchrun_and_are_sessions_of_their_own(launcher: Launcher) -> None:
    live = launcher.start(num_epochs=100_000)
    live.wait_for_step(1)
    torchrun, ranks = live.torchrun(), [live.rank(0), live.rank(1)]
    assert [rank.ppid() for rank in ranks] == [torchrun.pid] * 2
    assert [rank.environ() for rank in ranks] == [torchrun.environ()] * 2, "an interpreter of its own"
    assert [shown(rank) for rank in ranks] == [f"ddp: {live.run.run_id} rank {rank}" for rank in (0, 1)]
    assert [os.getsid(rank.pid) for rank in ranks] == [rank.pid for rank in ranks]
    live.ask("stop", save=False)
    assert live.wait_for_end().state == "stopped", live.story()


def test_where_forking_is_turned_off_each_rank_has_an_interpreter_and_the_run_is_the_same(
    launcher: Launcher, finished_run: LiveRun
) -> None:
    run = create_run(launcher.runs_dir, **REFERENCE)
    # The forked run divides all cores, an executed one those that are free when it starts.
    num_threads = {threads.GIVEN: str(threads.choose(run.read_config().nproc_per_node, num_cores_to_use()))}
    live = launcher.start_run(run, environment={torchrun.START_METHOD: "spawn", **num_threads})
    live.pause_at_start()
    assert isinstance(finished_run.supervisor, ForkedProgram) == torchrun.can_fork()
    assert live.supervisor.args[1:3] == ["-m", SUPERVISOR], "executed, as a user's"
    assert "trainers.engines.local.fork_server" not in live.torchrun().cmdline()
    assert live.rank(0).environ()["RANK"] == "0", "started, not forked"
    assert [shown(live.rank(rank)) for rank in (0, 1)] == [
        f"ddp: {run.run_id} rank {rank}" for rank in (0, 1)
    ]
    live.ask("resume")
    assert live.wait_for_end().state == "finished", live.story()
    assert live.losses() == finished_run.losses()


def test_what_kills_a_rank_is_named_also_where_forking_is_turned_off(launcher: Launcher) -> None:
    run = create_run(launcher.runs_dir, num_epochs=100_000)
    live = launcher.start_run(run, environment={torchrun.START_METHOD: "spawn"})
    live.wait_for_step(1)
    live.rank(1).kill()
    status = live.wait_for_end()
    assert status.error is not None and "Rank 1 was killed (SIGKILL)" in status.error, live.story()
    live.wait_for_no_process(ANSWER_TIMEOUT_S)


def test_second_start_of_a_live_run_is_refused_and_two_runs_at_once_do_not_collide(
    launcher: Launcher,
) -> None:
    first = launcher.start(num_epochs=100_000, name="twin")
    second = launcher.start(max_steps=40, name="twin")
    assert first.run.run_id != second.run.run_id
    assert second.wait_for_end().state == "finished", second.story()
    first.wait_for_step(1)
    wait_until(
        "status.json saying running",
        lambda: liveness.read_status(first.run).state == "running",
        ANSWER_TIMEOUT_S,
    )
    intruder = launcher.start_run(first.run)
    assert intruder.supervisor.wait(timeout=END_TIMEOUT_S) != 0
    assert liveness.read_status(first.run).state == "running", "the intruder must not touch the live run"
    assert liveness.read_status(first.run).pid == first.supervisor.pid
    first.run.append_command("stop", save=False)
    assert first.wait_for_end().state == "stopped", first.story()
    assert len(second.losses()) == 40


def test_configuration_that_cannot_be_built_fails_with_the_field_in_the_error(launcher: Launcher) -> None:
    live = launcher.start(model="no_such_model")
    status = live.wait_for_end()
    assert status.state == "failed" and status.exit_code != 0
    assert status.error is not None and "no_such_model" in status.error and "cnn" in status.error
    (error,) = live.events("error")
    assert error["code"] == "rank_raised" and error["rank"] in (0, 1) and "ValueError" in error["traceback"]
    assert live.states()[-1] == "failed"
