"""Users' scripts under observation: unmodified, bit-identical, and with findings for mistakes."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harness import (
    ANSWER_TIMEOUT_S,
    END_TIMEOUT_S,
    REPOSITORY,
    TORCHRUN,
    Launcher,
    LiveRun,
    all_events,
    run_to_end,
)
from tests.integration.conftest import Ranks
from trainers.contract import code, manifests, rundir
from trainers.contract.config import Config, parse
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory

SCRIPTS = REPOSITORY / "tests" / "scripts"
COPIED = REPOSITORY / "trainers" / "watch" / "to_copy" / "watch.py"


def start(launcher: Launcher, name: str, **values: Any) -> LiveRun:
    """Start a script of `tests/scripts` as a run."""
    entry = f"{name}.py"
    files = {entry: (SCRIPTS / entry).read_bytes(), "watch.py": COPIED.read_bytes()}
    raw = {"model": "script", "dataset": "script", "script": entry, "device": "cpu", "on_hang": "wait"}
    run = rundir.create(launcher.runs_dir, parse(raw | values), lambda made: code.write(made.path, files))
    return launcher.start_run(run)


def run_watched(ranks: Ranks, name: str, folder: Path, *arguments: str, **variables: str) -> list[Event]:
    """Run a script for torchrun as a run without a supervisor, on two forked ranks; return its events."""
    folder.mkdir()
    shutil.copy(SCRIPTS / f"{name}.py", folder / "train.py")
    fails = "unused_parameters" in arguments  # DDP refuses them at the second step
    ranks.start("watched", folder, 2, variables, arguments, may_fail=fails)
    return all_events(RunDirectory(folder / "run"))


def losses_of(path: Path) -> list[list[str]]:
    """Return the losses that each rank has written, as hexadecimal numbers."""
    return [file.read_text().split() for file in sorted(path.parent.glob(f"{path.name}.*"))]


def run_unwatched(ranks: Ranks, name: str, losses: Path, *, started_as: str) -> None:
    """Run a script without the page."""
    script, variables = SCRIPTS / f"{name}.py", {"LOSSES": str(losses)}
    if started_as == "forked":
        folder = losses.with_name("unwatched")
        folder.mkdir()
        shutil.copy(script, folder / "train.py")
        ranks.start("script", folder, 2, variables)
        return
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    program = torchrun if started_as == "torchrun" else [TORCHRUN[0]]
    exit_code, said = run_to_end([*program, str(script)], END_TIMEOUT_S, variables)
    assert exit_code == 0, said


# For each script: number of ranks, steps, how it is started, model, samples of all ranks per step. Forked
# ranks have no supervisor and need not import torch.
TABLE = {
    "plain_ddp": (2, 48, "forked", "Sequential", 64),
    "spawned": (2, 40, "python", "Linear", 40),
    "accumulate": (2, 16, "forked", "Sequential", 64),
    "two_optimizers": (2, 16, "forked", "Sequential", 128),
    "mixed_precision": (2, None, "forked", "Sequential", 32),
    "fsdp2": (2, 25, "forked", "FSDPSequential", 24),
    "single": (1, 40, "python", "Net", 50),
    "second_order": (2, 10, "forked", None, None),
    "two_passes": (2, 12, "forked", "Sequential", 40),
    # Not forked ranks: these libraries look at their process before they start.
    "hf_trainer": (2, 16, "torchrun", "GPT2LMHeadModel", 8),
    "with_accelerate": (2, 24, "torchrun", "Sequential", 32),
    "with_lightning": (2, 48, "torchrun", "Classifier", 16),
}
PACKAGES = {"hf_trainer": "transformers", "with_accelerate": "accelerate", "with_lightning": "lightning"}


@pytest.mark.parametrize("name", TABLE)
def test_an_unmodified_script_is_watched_without_changing_a_bit(
    name: str,
    launcher: Launcher,
    tmp_path: Path,
    ranks: Ranks,
) -> None:
    num_ranks, num_steps, started_as, model, num_samples = TABLE[name]
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
        if importlib.util.find_spec("torchvision"):
            # The libraries import it, and a script can do nothing about it.
            other_build = "torchvision is of another build of torch"
            pytest.importorskip("torchvision", reason=other_build, exc_type=RuntimeError)
    alone, watched = tmp_path / "alone", tmp_path / "watched"
    run_unwatched(ranks, name, alone, started_as=started_as)
    if started_as == "forked":
        told = run_watched(ranks, name, tmp_path / "folder", LOSSES=str(watched))
    else:
        live = start(
            launcher,
            name,
            nproc_per_node=num_ranks,
            script_start=started_as,
            script_environment=f"LOSSES={watched}",
        )
        live.finish()
        told = live.events()
    expected = losses_of(alone)
    assert losses_of(watched) == expected and len(expected) == num_ranks, "the same bits on each rank"
    steps = [event for event in told if event["kind"] == "step"]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert steps[0]["epoch"] == 0, "whatever number the script begins with"
    assert num_steps is None or len(steps) == num_steps
    own = [[float.fromhex(loss) for loss in rank] for rank in expected]
    means = [sum(losses) / num_ranks for losses in zip(*own, strict=True)]
    assert len(means) == len(steps)
    for step, mean in zip(steps, means, strict=True):
        assert math.isclose(step["loss"], mean, rel_tol=1e-6), step
    about = [event for event in told if event["kind"] == "script"][-1]
    assert about["model"] == model
    assert about["global_batch"] == num_samples
    assert about["num_parameters"] or model is None
    assert about["num_steps"] in (None, len(steps)) or name == "mixed_precision", "skipped steps are no steps"
    assert all(step["lr"] > 0 for step in steps)
    assert [event for event in told if event["kind"] == "finding"] == [], "no false alarm"
    assert [event["state"] for event in told if event["kind"] == "state"] == [
        "starting",
        "running",
        "finished",
    ]


def test_progress_rate_and_parts_of_a_step_are_known(launcher: Launcher, tmp_path: Path) -> None:
    live = start(
        launcher,
        "plain_ddp",
        script_arguments="--epochs 6 --lr 0.5",
        script_environment=f"LOSSES={tmp_path / 'losses'}",
    )
    live.wait_for_end()
    about = live.events("script")[-1]
    assert about["num_epochs"] == 6 and about["steps_per_epoch"] == 16 and about["num_steps"] == 96
    assert about["num_train"] == 1024 and about["optimizer"] == "SGD" and about["backend"] == "gloo"
    steps = live.events("step")
    assert {step["lr"] for step in steps} == {0.5}
    assert [step["epoch"] for step in steps[::16]] == list(range(6))
    assert all(step["samples_per_s"] > 0 for step in steps)
    assert any(step["grad_norm"] for step in steps)
    ranks = live.events("ranks")[-1]["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    parts = ("data_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s")
    for rank in ranks:
        assert 0 < sum(rank[part] for part in parts) <= rank["step_time_s"] * 1.001
        assert 0 <= rank["wait_time_s"] <= rank["backward_time_s"]
        assert rank["loss"] > 0 and rank["peak_memory_bytes"] > 10**7
    assert about["buckets"] == [4 * about["num_parameters"]]
    assert about["groups"] == [{"num_parameters": about["num_parameters"], "lr": 0.5}]
    prints = live.events("fingerprints")
    assert [event["step"] for event in prints] == [1, 10, 50]
    assert all(len(set(event["hashes"])) == 1 for event in prints)
    assert "rank 1 epoch 5 done" in live.run.rank_log(1).read_text()


def test_a_script_for_gpus_runs_on_cpu_ranks_and_each_replacement_is_listed(launcher: Launcher) -> None:
    name = "gpu_tour"
    live = start(launcher, name, script_on_cpu=True)
    status = live.wait_for_end()
    assert status.state == "finished", live.story()
    about = live.events("script")[-1]
    assert about["backend"] == "gloo"
    assert len(about["replaced"]) >= 12, about["replaced"]
    source = (SCRIPTS / f"{name}.py").read_text().splitlines()
    for replaced in about["replaced"]:
        line = int(replaced.rpartition("line ")[2])
        assert any(
            word in source[line - 1]
            for word in ("cuda", "nccl", "RANK", "local_rank", "device", "pin_memory")
        )


# Codes of findings, and forms of the mistakes.
MISTAKES = (
    "",
    "no_set_epoch shown_loss same_file no_destroy",
    "same_samples evaluates_alone",
    "small_batch_norm data_parallel",
    "replicas_differ",
    "unused_parameters",
    "no_steps",
    "same_samples without_loader",
    "shown_loss as_float",
    "evaluates_alone shown_loss in_training_mode accumulates",
    "no_destroy shown_loss leaves divides",
)
FORMS = {"without_loader", "as_float", "in_training_mode", "accumulates", "leaves", "divides"}


@pytest.mark.parametrize("mistakes", MISTAKES, ids=lambda mistakes: mistakes or "none")
def test_the_review_finds_each_mistake_and_no_other(mistakes: str, ranks: Ranks, tmp_path: Path) -> None:
    told = run_watched(ranks, "wrong", tmp_path / "folder", *mistakes.split(), OUTPUT=str(tmp_path))
    findings = [event for event in told if event["kind"] == "finding"]
    expected = {*mistakes.split()} - FORMS
    assert sorted(finding["code"] for finding in findings) == sorted(expected), told[-3:]
    source = (SCRIPTS / "wrong.py").read_text().splitlines()
    for finding in findings:
        assert finding["file"] == "train.py" and 1 <= finding["line"] <= len(source)
        assert finding["message"] and finding["hint"]


# Number of samples of a step; and of steps, if it is known.
CORRECT = {
    "sharded_optimizer": (16, 12),
    "uneven_inputs": (16, None),
    "tensor_parallel": (8, 24),
    "pipeline": (8, 24),
    "hybrid_shards": (16, 12),
    "flat_shards": (16, 12),
    "ring": (16, 12),
    "one_pass": (20, 4),
    "endless": (16, 12),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_script_that_looks_like_a_mistake_has_no_finding(
    name: str, ranks: Ranks, tmp_path: Path
) -> None:
    num_samples, num_steps = CORRECT[name]
    told = run_watched(ranks, "correct", tmp_path / "folder", name)
    assert [event for event in told if event["kind"] == "finding"] == []
    steps = [event for event in told if event["kind"] == "step"]
    about = [event for event in told if event["kind"] == "script"][-1]
    assert all(step["loss"] > 0 for step in steps)
    assert about["global_batch"] == num_samples
    assert num_steps in (None, about["num_steps"]) and num_steps in (None, len(steps))


@pytest.mark.parametrize("how", ["by_hand", "by_torch"])
def test_local_sgd_is_a_remark(how: str, ranks: Ranks, tmp_path: Path) -> None:
    told = run_watched(ranks, "correct", tmp_path / "folder", "local_sgd", how)
    (finding,) = [event for event in told if event["kind"] == "finding"]
    assert (finding["code"], finding["level"]) == ("replicas_differ", "remark"), finding
    source = (SCRIPTS / "correct.py").read_text().splitlines()
    assert "all_reduce" in source[finding["line"] - 1] or "average_parameters" in source[finding["line"] - 1]


def test_an_error_names_the_rank_and_the_script_s_own_line(launcher: Launcher) -> None:
    live = start(launcher, "fails")
    status = live.wait_for_end()
    assert status.state == "failed"
    (error,) = live.events("error")
    assert error["rank"] == 1
    assert "the labels of this batch are missing" in error["message"]
    source = (SCRIPTS / "fails.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "raise ValueError" in text)
    assert f'fails.py", line {line}' in error["traceback"]
    assert "trainers/watch" not in error["traceback"]
    assert status.exit_code == 1


def test_parameters_without_gradient_of_one_of_two_models_are_no_error_of_ours(launcher: Launcher) -> None:
    live = start(launcher, "two_models")
    assert live.wait_for_end().state == "failed"
    assert "did not receive grad" in live.events("error")[0]["message"]
    assert live.losses().keys() >= set(range(1, 13))
    logs = [path.read_text() for path in live.run.path.rglob("*.log")]
    assert logs
    assert not any("Internal error of Rankscope" in log for log in logs)


def test_sigterm_while_rank_0_writes_its_last_steps_loses_none(launcher: Launcher) -> None:
    live = start(launcher, "fails_on_both")
    assert live.wait_for_end().state == "failed"
    assert "closing signal SIGTERM" in (live.run.logs / "torchrun.log").read_text()
    assert live.losses().keys() == set(range(1, 13))


def test_stop_of_a_script_that_asks_ends_it_at_the_same_step_on_all_ranks(launcher: Launcher) -> None:
    live = start(launcher, "endless", script_arguments="asks")
    live.wait_for_step(30)
    answer = live.ask("stop", save=False)
    assert answer["accepted"]
    status = live.is_over_within(ANSWER_TIMEOUT_S)
    assert status.state == "stopped" and status.exit_code == 0, live.story()
    ends = {live.run.rank_log(rank).read_text().strip().splitlines()[-1] for rank in (0, 1)}
    assert len(ends) == 1 and ends.pop().startswith("stopped at ")
    assert live.events("eval")[0]["metrics"] == {"accuracy": 0.02}


def test_stop_of_a_script_that_does_not_ask_is_sigterm_and_leaves_nothing(launcher: Launcher) -> None:
    live = start(launcher, "endless")
    live.wait_for_step(5)
    live.run.append_command("stop", save=False)
    status = live.is_over_within(ANSWER_TIMEOUT_S)
    assert status.state == "stopped"
    reasons = [event["reason"] for event in live.events("state")]
    assert any("does not call watch.should_stop()" in reason and "10 s" in reason for reason in reasons)


def test_a_hang_names_the_rank_and_the_script_s_line(launcher: Launcher) -> None:
    live = start(launcher, "endless", script_arguments="hangs", hang_timeout_s=3, on_hang="end")
    status = live.wait_for_end()
    assert status.state == "failed"
    (error,) = live.events("error")
    assert error["code"] == "hang"
    assert "endless.py:" in error["message"], error["message"]
    assert "all-reduce" in error["message"] or "barrier" in error["message"]


def test_the_literal_command_makes_a_run_with_its_code(tmp_path: Path) -> None:
    config = parse({"script": "plain_ddp.py", "nproc_per_node": 2, "dataset": "script", "model": "script"})
    assert isinstance(config, Config)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "trainers.watch"]
    command += ["--run-dir", str(tmp_path / "mine"), str(SCRIPTS / "plain_ddp.py"), "--epochs", "2"]
    exit_code, said = run_to_end(command, END_TIMEOUT_S, {"LOSSES": str(tmp_path / "losses")})
    assert exit_code == 0, said
    run = rundir.RunDirectory(tmp_path / "mine")
    made = run.read_config()
    assert made.script == "plain_ddp.py" and made.script_arguments == "--epochs 2"
    assert code.read(run.path)["plain_ddp.py"] == (SCRIPTS / "plain_ddp.py").read_bytes()
    lines = [json.loads(line) for line in run.events.read_text().splitlines()]
    assert lines[-1]["kind"] == "state" and lines[-1]["state"] == "finished"
    assert sum(line["kind"] == "step" for line in lines) == 32


def example_of_the_docs() -> str:
    """Return the script with `watch.load` and `watch.save` in docs/scripts.md."""
    text = (REPOSITORY / "docs" / "scripts.md").read_text()
    return next(part for part in text.split("```python\n") if "watch.load(" in part).partition("```")[0]


def start_example(launcher: Launcher, source: str, entry: str = "train.py", **values: Any) -> LiveRun:
    """Start a script on two CPU ranks."""
    files = {entry: source.encode(), "trainers/pause.py": b"from time import sleep\n"}
    files["watch.py"] = COPIED.read_bytes()
    raw = {"model": "script", "dataset": "script", "script": entry, "device": "cpu", "nproc_per_node": 2}
    return launcher.start_run(
        rundir.create(launcher.runs_dir, parse(raw | values), lambda made: code.write(made.path, files))
    )


def test_a_script_that_saves_continues_with_the_same_bits(launcher: Launcher) -> None:
    """Resumed in the middle of an epoch, with dropout and a sampler; on the way, Checkpoint and Stop."""
    source = example_of_the_docs()
    whole = start_example(launcher, source)
    whole.finish()
    expected = whole.losses()
    slow = source.replace("optimizer.step()", "optimizer.step(), __import__('time').sleep(0.02)")
    live = start_example(launcher, slow)
    live.wait_for_step(5)
    answer = live.ask("checkpoint")
    assert answer["accepted"] and answer["message"].startswith("Saved step "), live.story()
    live.wait_for("script", lambda event: event["saves"])
    assert live.ask("stop", save=False)["accepted"]
    status = live.is_over_within(ANSWER_TIMEOUT_S)
    assert status.state == "stopped" and status.exit_code == 0, live.story()
    asked, stopped = sorted(live.run.list_checkpoints(), key=lambda item: item.step)
    assert (asked.reason, stopped.reason) == ("button", "stop")
    assert all(manifests.find_fault(item) is None for item in (asked, stopped))
    assert {path.name for path in asked.path.iterdir()} == {
        "script.pt", "state.json", "manifest.json", "rank_0.pt", "rank_1.pt",
    }  # fmt: skip
    again = launcher.start_run(live.run, asked.step).finish()
    assert again.losses() == {step: loss for step, loss in expected.items() if step > asked.step}
    weights = {event["step"]: event["hashes"] for event in whole.events("fingerprints")}
    for event in again.events("fingerprints"):
        assert event["hashes"] == weights[event["step"]]
    steps = again.events("step")
    assert [steps[-1]["step"], steps[-1]["epoch"]] == [192, 11]
    about = again.events("script")[-1]
    assert (about["num_epochs"], about["num_steps"]) == (12, 192)


def test_a_script_that_saves_is_asked_to_every_number_of_steps(launcher: Launcher) -> None:
    # Run as `python -m trainers.train`, of the script's own package.
    source = "from .pause import sleep\n" + example_of_the_docs()
    source = source.replace("optimizer.step()", "optimizer.step(), sleep(0.02)").replace(", 12)", ", 8)")
    every = {"checkpoint_every_steps": 20, "keep_last_checkpoints": 2}
    live = start_example(launcher, source, "trainers/train.py", **every)
    live.finish()
    saved = live.events("checkpoint")
    assert {each["reason"] for each in saved} == {"schedule"}
    steps = [each["step"] for each in saved]
    assert len(steps) > 2 and all(step % 20 == 0 for step in steps), steps
    kept = sorted(item.step for item in live.run.list_checkpoints())
    assert kept == steps[-2:] and [step for each in saved for step in each["removed"]] == steps[:-2]


def test_a_script_that_saves_on_one_rank_only_is_told(launcher: Launcher) -> None:
    source = example_of_the_docs().replace(" watch.save(", " dist.get_rank() or watch.save(")
    live = start_example(launcher, source.replace('range(saved["epoch"], 12)', "range(10_000)"))
    live.wait_for_step(5)
    answer = live.ask("checkpoint")
    assert not answer["accepted"] and "not called by rank 1" in answer["message"]
    assert live.run.list_checkpoints() == [] and list(live.run.checkpoints.iterdir()) == []
