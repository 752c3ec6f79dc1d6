"""The "Look closer" panel: what it shows of a run and does to it, compared with the real ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from ddp_gui.events.series import Series
from ddp_gui.run.samples import sampling_of, shuffled_order
from tests.harness import (
    END_TIMEOUT_S,
    Launcher,
    LiveRun,
    all_events,
    create_run,
    run_to_end,
    torchrun_by_hand,
)
from tests.integration.samples_worker import ADDRESS
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local import stopping
from trainers.files.json_files import write_json_atomically

Look = tuple[int, int, int, int]  # sample, step, rank, micro-batch

# Much longer than the delays of a busy machine.
DELAY_MS = 300
FEW_SAMPLES = 3


def loaded(folder: Path, first_step: int, num_ranks: int) -> Iterator[Look]:
    """Yield the samples that the ranks of one start recorded."""
    for rank in range(num_ranks):
        step, piece = first_step, 0
        for line in (folder / f"rank_{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            yield from ((sample, step, rank, piece) for sample in note["samples"])
            step, piece = (step + 1, 0) if note["is_last"] else (step, piece + 1)


def train_noting(run: RunDirectory, folder: Path, *resume: str) -> None:
    folder.mkdir()
    command = torchrun_by_hand(run, *resume)
    command = [part.replace("trainers.worker", "tests.integration.samples_worker") for part in command]
    exit_code, said = run_to_end(command, END_TIMEOUT_S, {ADDRESS: str(folder)})
    assert exit_code == 0, said


def test_picture_shows_what_the_ranks_loaded_also_after_a_resume_on_other_ranks(tmp_path: Path) -> None:
    """Covers an epoch with an uneven last batch, accumulation, and a resume near the end of an epoch."""
    steps_at_first, steps_in_all = 60, 110
    values = {"batch_size": 8, "gradient_accumulation_steps": 2, "eval_every_steps": 10**6}
    run = create_run(tmp_path, **values, max_steps=steps_at_first, num_epochs=100)
    train_noting(run, tmp_path / "first")
    changes = {"nproc_per_node": 3, "batch_size": 5, "max_steps": steps_in_all}
    write_json_atomically(run.config, run.read_config().to_json() | changes)
    train_noting(run, tmp_path / "second", "--resume", str(steps_at_first))

    series = Series()
    series.feed(all_events(run))
    sampling = sampling_of(run.read_config(), series.plans, 3)
    assert sampling is not None
    num_epochs = 3
    rule = Counter(
        (int(sample), *look)
        for epoch in range(num_epochs)
        for place, sample in enumerate(shuffled_order(sampling.num_samples, sampling.seed_of(epoch)))
        for look in sampling.seen(epoch, place)
        if look.step <= steps_in_all
    )
    found = Counter(loaded(tmp_path / "first", 1, 2))
    found += Counter(loaded(tmp_path / "second", steps_at_first + 1, 3))
    assert {look[1] for look in found} == set(range(1, steps_in_all + 1))
    assert rule == found
    *_, last_piece = sampling.pieces(0)
    assert last_piece.first_step + last_piece.num_steps <= steps_in_all, "the epoch's last batch was loaded"
    assert last_piece.num_steps * last_piece.global_batch > last_piece.end_place - last_piece.first_place


def waits_after(live: LiveRun, step: int) -> list[float]:
    """Return rank 0's waiting times in a few measured steps after this one."""

    def found() -> list[float]:
        return [
            entry["wait_time_s"]
            for event in live.events("ranks")
            for entry in event["ranks"]
            if entry["rank"] == 0 and entry["step"] > step + 1
        ]

    live.wait_for("ranks", lambda _: len(found()) >= FEW_SAMPLES)
    return found()


def test_a_rank_is_slowed_and_killed_and_the_run_goes_on_with_the_same_bits(launcher: Launcher) -> None:
    values = {"num_epochs": 100_000, "checkpoint_every_steps": 10, "eval_every_steps": 10**6}
    live = launcher.start(**values)
    live.wait_for_step(1)
    slowed = live.ask("slow_rank", rank=1, delay_ms=DELAY_MS)
    assert slowed["accepted"] and slowed["arguments"] == {"rank": 1, "delay_ms": DELAY_MS}
    assert f"Rank 1 sleeps {DELAY_MS} ms" in slowed["message"]
    assert min(waits_after(live, slowed["step"])) > 0.8 * DELAY_MS / 1000
    nobody = live.ask("slow_rank", rank=2, delay_ms=DELAY_MS)
    assert not nobody["accepted"]
    assert nobody["message"] == "There is no rank 2: this run has ranks 0 to 1."
    released = live.ask("slow_rank", rank=1, delay_ms=0)
    assert released["accepted"]
    assert median(waits_after(live, released["step"])) < 0.5 * DELAY_MS / 1000
    # Slow the rank again, so that the run does not get far before the kill.
    again = live.ask("slow_rank", rank=1, delay_ms=DELAY_MS)
    live.wait_for("checkpoint", lambda event: event["step"] > again["step"])
    stopping.kill_rank(live.run, liveness.read_status(live.run), 1)
    assert live.wait_for_end().state == "failed"
    (warning,) = (event for event in live.events("warning") if event["rank"] == 1)
    assert warning["code"] == "rank_kill_asked"
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("rank_killed", 1)
    assert error["message"] == "Rank 1 was killed (SIGKILL), as requested on its page."
    assert "Resume continues from the checkpoint" in error["hint"]
    live.wait_for_no_process(END_TIMEOUT_S)

    saved = max(item.step for item in live.run.list_checkpoints())
    ends_at = {"max_steps": saved + 30}
    write_json_atomically(live.run.config, live.run.read_config().to_json() | ends_at)
    resumed = launcher.start_run(live.run, resume_step=saved)
    undisturbed = launcher.start(**values | ends_at)
    for each in (resumed, undisturbed):
        each.finish()
    expected = undisturbed.losses()
    before, after = live.losses(), resumed.losses()
    assert max(after) == max(expected) and min(after) <= max(before) + 1
    assert before | after == expected | {step: before[step] for step in before if step not in expected}
    with pytest.raises(ValueError, match=r"rank 0 of run .* has no process on this machine at the moment"):
        stopping.kill_rank(live.run, liveness.read_status(live.run), 0)
