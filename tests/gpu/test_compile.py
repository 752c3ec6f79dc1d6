"""torch.compile within a run: changing shapes, and a stop during compilation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.gpu.place import Place
from tests.harness import Launcher, LiveRun
from trainers.contract import checkpoint_files

# 1,437 images of digits: 22 batches of 64 and a last one of 29.
BATCH_SIZE, STEPS_PER_EPOCH = 64, 23
# 11 global batches of 128 and a last one of 29.
STEPS_ON_TWO = 12
# Compilation takes minutes on a busy machine.
COMPILE_S = 900.0
# Compiled code sums in another order; over 46 steps from the same weights the losses differ only slightly.
LOSS = 0.02


def start(launcher: Launcher, place: Place, **more: Any) -> LiveRun:
    values = {"dataset": "digits", "model": "cnn", "batch_size": BATCH_SIZE, "nproc_per_node": 1}
    return launcher.start(**values | more, device=place.device)


def wait_for_end(live: LiveRun) -> None:
    """Wait for the end. A warning would mean that compiled code was not used throughout."""
    status = live.wait_for_end(COMPILE_S)
    assert status.state == "finished", live.story()
    assert [event["message"] for event in live.events("warning")] == []


def test_two_epochs_with_an_odd_last_batch_evaluation_and_sample(launcher: Launcher, place: Place) -> None:
    """Each brings a new shape or mode; the losses match those of the uncompiled model."""
    compiled = start(launcher, place, compile=True, num_epochs=2)
    wait_for_end(compiled)
    plain = start(launcher, place, compile=False, num_epochs=2)
    wait_for_end(plain)
    losses = compiled.losses()
    assert sorted(losses) == list(range(1, 2 * STEPS_PER_EPOCH + 1))
    assert all(map(math.isfinite, losses.values()))
    assert losses == pytest.approx(plain.losses(), abs=LOSS)
    assert [event["step"] for event in compiled.events("eval")] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    assert compiled.events("sample")
    assert compiled.events("eval")[-1]["loss"] == pytest.approx(plain.events("eval")[-1]["loss"], abs=LOSS)


def test_two_ranks_with_an_odd_last_batch(launcher: Launcher, two: Place) -> None:
    """Graphs split at DDP's buckets, then local batches of 15 and 14 images from the last 29."""
    more = {"nproc_per_node": 2, "model": "mlp", "model_size": "large", "bucket_cap_mb": 1, "num_epochs": 2}
    compiled, plain = (start(launcher, two, compile=compiles, **more) for compiles in (True, False))
    for live in (compiled, plain):
        wait_for_end(live)
    losses = compiled.losses()
    assert sorted(losses) == list(range(1, 2 * STEPS_ON_TWO + 1))
    assert losses == pytest.approx(plain.losses(), abs=LOSS)


def test_a_stop_is_heard_while_evaluation_is_compiled(launcher: Launcher, place: Place) -> None:
    """Stop is requested at the end of the first epoch, when the shapes of evaluation are compiled.

    The run saves and ends without being forced.
    """
    live = start(launcher, place, compile=True, num_epochs=100_000)
    live.wait_for("step", lambda event: event["step"] >= STEPS_PER_EPOCH, timeout_s=COMPILE_S)
    asked = live.run.append_command("stop")
    answer = live.wait_for("command", lambda event: event["id"] == asked, timeout_s=COMPILE_S)
    assert answer["accepted"], answer
    status = live.wait_for_end(COMPILE_S)
    assert (status.state, status.exit_code) == ("stopped", 0), live.story()
    assert live.events("warning") == [], "it stopped by itself"
    checkpoint_files.verify(live.run, answer["step"])


def test_a_stop_is_heard_while_the_model_is_compiled_for_the_first_time(
    launcher: Launcher, place: Place
) -> None:
    live = start(launcher, place, compile=True, num_epochs=100_000)
    live.wait_for("state", lambda event: event["state"] == "starting")
    live.run.append_command("stop", save=False)
    status = live.wait_for_end(COMPILE_S)
    assert status.state == "stopped", live.story()
    live.wait_for_no_process(60.0)


def test_what_the_log_calls_compiled_was_compiled(launcher: Launcher, place: Place) -> None:
    """Inductor skips bf16 on GPUs without it: such a run is not logged as compiled, and warns why."""
    live = start(launcher, place, compile=True, precision="bf16", max_steps=3, model="mlp")
    assert live.wait_for_end(COMPILE_S).state == "finished", live.story()
    is_called_compiled = "compiled mlp" in live.run.rank_log(0).read_text()
    failed = [event for event in live.events("warning") if event["code"] == "compile_failed"]
    assert is_called_compiled is not bool(failed), live.story()
    if place.is_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        assert failed and "fp16" in failed[0]["message"], failed
