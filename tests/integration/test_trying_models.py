"""Trained models answer from separate processes; killed, stopped and starved processes are replaced."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.run import model_process
from ddp_gui.run.model_process import ModelError, ModelProcesses
from tests.harness import wait_until
from tests.unit.trained_runs import delete_checkpoint, leave_trained_run
from trainers.contract.rundir import RunDirectory
from trainers.machine.processes import is_alive

pytestmark = pytest.mark.integration

PIXELS = {"pixels": [[3] * 8] * 8}
OPTIONS = {"temperature": 1.0, "top_k": None, "num_tokens": 8, "seed": 1}
END_S = 30.0


@pytest.fixture
def processes() -> Iterator[ModelProcesses]:
    made = ModelProcesses(TorchTemplate())
    yield made
    made.close()


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def digits(runs_dir: Path) -> RunDirectory:
    return leave_trained_run(runs_dir, "digits", "linear", steps=(1, 2, 3))[0]


@pytest.fixture(scope="module")
def writer(runs_dir: Path) -> RunDirectory:
    return leave_trained_run(runs_dir, "austen", "gpt")[0]


def about(run: RunDirectory, step: int | None, **question: Any) -> dict[str, Any]:
    return {"run_dir": str(run.path), "step": step, **question}


def templates() -> list[psutil.Process]:
    """Return the live children of this process that fork the answering processes."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found += [child] if is_alive(child.pid) and "trainers.predict.server" in child.cmdline() else []
    return found


def forks() -> list[psutil.Process]:
    """Return the live answering processes."""
    found = []
    for template in templates():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [fork for fork in template.children() if is_alive(fork.pid)]
    return found


def test_a_process_killed_while_it_computes_is_a_message_and_the_next_attempt_works(
    processes: ModelProcesses, writer: RunDirectory
) -> None:
    options = OPTIONS | {"num_tokens": 2_000}
    question = about(writer, 1, do="generate", prompt="It", options=options)
    tokens = processes.stream("ann", question)
    next(tokens)
    (fork,) = forks()
    os.kill(fork.pid, signal.SIGKILL)
    with pytest.raises(ModelError, match=r"was killed .* try again"):
        list(tokens)
    assert "token" in next(processes.stream("ann", question))


def test_a_process_or_template_that_ended_while_idle_is_replaced_silently(
    processes: ModelProcesses, digits: RunDirectory
) -> None:
    question = about(digits, 2, do="predict", inputs=PIXELS)
    first = processes.ask("ann", question)
    for kill in (lambda: forks()[0].kill(), lambda: templates()[0].kill()):
        (fork,) = forks()
        kill()
        wait_until("its end", lambda gone=fork: not is_alive(gone.pid), END_S)
        assert processes.ask("ann", question) == first


def test_wrong_inputs_and_deleted_checkpoints_are_messages_and_the_process_goes_on(
    processes: ModelProcesses, runs_dir: Path
) -> None:
    run = leave_trained_run(runs_dir, "digits", "linear", steps=(1, 2))[0]
    good = about(run, 1, do="predict", inputs=PIXELS)
    first = processes.ask("", good)
    (fork,) = forks()
    with pytest.raises(ModelError, match="this model takes: image"):
        processes.ask("", about(run, 1, do="predict", inputs={"text": "no"}))
    with pytest.raises(ModelError, match="use predict instead"):
        processes.ask("", about(run, 1, do="generate", prompt="", options=OPTIONS))
    for inputs, words in (
        ({"text": "\ud800"}, "cannot be sent to the model"),
        ({"row": {"x": 10**30}}, "cannot be sent to the model"),
        ({"text": "a" * 2**20}, "this input has 1,048,.* bytes; allowed: 1,048,576"),
    ):
        with pytest.raises(ModelError, match=words):
            processes.ask("", about(run, 1, do="predict", inputs=inputs))
    delete_checkpoint(run, 2)
    with pytest.raises(ModelError, match="no checkpoint of step 2; its checkpoints: 1"):
        processes.ask("", about(run, 2, do="predict", inputs=PIXELS))
    assert processes.ask("", good) == first
    assert [each.pid for each in forks()] == [fork.pid]


def test_a_text_stops_when_nobody_reads_it(processes: ModelProcesses, writer: RunDirectory) -> None:
    options = OPTIONS | {"num_tokens": 2_000}
    tokens = processes.stream("", about(writer, 1, do="generate", prompt="It", options=options))
    assert isinstance(next(tokens)["token"]["text"], str)
    tokens.close()  # type: ignore[attr-defined]
    whole = list(processes.stream("", about(writer, 1, do="generate", prompt="It", options=OPTIONS)))
    assert len(whole) == OPTIONS["num_tokens"] + 1 and whole[-1] == {"is_stopped": False, "step": 1}  # type: ignore[operator]
    assert len(forks()) == 1


def test_two_users_have_processes_of_their_own_and_all_end_with_the_page(
    processes: ModelProcesses, digits: RunDirectory
) -> None:
    question = about(digits, 1, do="predict", inputs=PIXELS)
    assert processes.ask("ann", question) == processes.ask("ben", question)
    assert len(forks()) == 2
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(processes.ask, ["ann", "ben"] * 10, [question] * 20))
    assert all(answer == found[0] for answer in found)
    all_of_them = forks()
    assert len(all_of_them) <= 2 * model_process.MAX_PER_PERSON
    processes.close()
    wait_until("their end", lambda: not any(is_alive(each.pid) for each in all_of_them), END_S)


def test_a_process_that_does_not_answer_is_ended(
    processes: ModelProcesses, digits: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = about(digits, 1, do="predict", inputs=PIXELS)
    first = processes.ask("", question)
    (fork,) = forks()
    fork.suspend()
    monkeypatch.setattr("ddp_gui.run.model_process.ANSWER_S", 0.2)
    with pytest.raises(ModelError, match="did not answer within"):
        processes.ask("", question)
    monkeypatch.undo()
    assert processes.ask("", question) == first
    wait_until("its end", lambda: not is_alive(fork.pid), END_S)


def test_the_template_is_ready_before_the_first_question_if_it_may(
    digits: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = ModelProcesses(TorchTemplate(), keeps_ready=False)
    lazy.get_ready()
    assert templates() == []
    eager = ModelProcesses(TorchTemplate())
    try:
        with monkeypatch.context() as patched:
            patched.setattr("ddp_gui.background.torch_template.READY_BYTES", 2**60)
            eager.get_ready()
            assert templates() == []
        eager.get_ready()
        (template,) = templates()
        eager.get_ready()
        eager.ask("", about(digits, 1, do="predict", inputs=PIXELS))
        assert templates() == [template] and len(forks()) == 1
    finally:
        eager.close()


def test_a_fork_may_not_use_all_memory(
    processes: ModelProcesses, digits: RunDirectory, runs_dir: Path
) -> None:
    processes.ask("", about(digits, 1, do="predict", inputs=PIXELS))
    (fork,) = forks()
    soft, hard = fork.rlimit(psutil.RLIMIT_DATA)
    assert 4 * 2**30 <= soft < 4 * 2**30 + fork.memory_info().data  # type: ignore[attr-defined]
    assert fork.nice() >= 5
    fork.rlimit(psutil.RLIMIT_DATA, (1, hard))  # Linux does not enforce 0
    large = leave_trained_run(runs_dir, "digits", "resnet", model_size="18")[0]  # 45 MB
    question = about(large, 1, do="predict", inputs=PIXELS)
    with pytest.raises(ModelError, match="more memory than the limit of 4 GB"):
        processes.ask("", question)
    fork.rlimit(psutil.RLIMIT_DATA, (soft, hard))
    assert processes.ask("", question)["step"] == 1


def test_where_cuda_fails_the_cpu_answers_and_no_gpu_is_tried_again_for_a_while(
    digits: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    """This torch or this machine has no CUDA, or no GPU with this UUID."""
    made = ModelProcesses(TorchTemplate(), with_free_gpus=lambda use: use(["GPU-nowhere"]))
    try:
        question = about(digits, 1, do="predict", inputs=PIXELS)
        answer = made.ask("", question)
        (fork,) = forks()
        assert made.ask("", question | {model_process.WANTS_GPU: True}) == answer
        assert "CUDA" in capfd.readouterr().err
        assert [each.pid for each in forks()] != [fork.pid]
        (fork,) = forks()
        assert made.ask("", question | {model_process.WANTS_GPU: True}) == answer
        assert [each.pid for each in forks()] == [fork.pid] and made.processes() == {}
    finally:
        made.close()
