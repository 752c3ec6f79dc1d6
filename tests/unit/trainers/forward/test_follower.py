"""A run is forwarded completely and once, whatever the service does; real sockets, a fake of MLflow."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_mlflow import FakeMlflow, fake_mlflow
from tests.forwarded_run import append, end, make_run, steps
from tests.harness import wait_until
from trainers.contract.rundir import RunDirectory
from trainers.forward import __main__ as program
from trainers.forward import follower as follower_module
from trainers.forward import state as state_module
from trainers.forward.follower import EventForwarder, lock_follower


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "POLL_S", 0.01)
    monkeypatch.setattr(follower_module, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(follower_module, "MAX_WAIT_S", 0.05)


@pytest.fixture
def service() -> Iterator[FakeMlflow]:
    with fake_mlflow() as fake:
        yield fake


def follower_of(run: RunDirectory, **limits: Any) -> EventForwarder:
    (run.path / state_module.FOLDER).mkdir(exist_ok=True)
    config = run.read_config()
    name = config.forward_to
    return EventForwarder(
        run, config, name, lambda state: program.open_tracker(run, config, name, state), **limits
    )


def mlflow_run(tmp_path: Path, service: FakeMlflow, num_steps: int, **more: Any) -> RunDirectory:
    return make_run(tmp_path, num_steps, forward_to="mlflow", forward_address=service.address, **more)


def state_of(run: RunDirectory) -> state_module.ForwardState:
    state = state_module.read(run, "mlflow")
    assert state is not None
    return state


@pytest.mark.parametrize("mode", ["hang", "500", "html"])
def test_a_slow_broken_or_wrong_service_loses_and_repeats_nothing(
    tmp_path: Path, service: FakeMlflow, mode: str
) -> None:
    run = mlflow_run(tmp_path, service, 40, state="running")
    service.mode = mode

    def scenario() -> None:
        wait_until("a failure is recorded", lambda: state_of(run).error, 20)
        assert state_of(run).phase == "retrying" and state_of(run).offset == 0
        append(run, steps(41, 60))
        service.mode = "ok"
        wait_until("it has caught up", lambda: state_of(run).step == 60, 20)
        assert state_of(run).error is None
        service.mode = mode
        append(run, steps(61, 80))
        wait_until("it fails again", lambda: state_of(run).error, 20)
        service.mode = "ok"

    assert follow_live(run, scenario, call_limit_s=0.3) and state_of(run).phase == "done"
    assert service.steps() == list(range(1, 81)) and len(service.runs) == 1


def test_a_service_that_stays_down_is_given_up_and_the_rest_can_be_sent_later(
    tmp_path: Path, service: FakeMlflow
) -> None:
    run = mlflow_run(tmp_path, service, 30)
    service.mode = "500"
    assert not follower_of(run, give_up_s=0.1).follow()
    shown = state_module.page_state(run, "mlflow")
    assert (shown["phase"], shown["is_alive"], shown["retry_unix_s"]) == ("given_up", False, None)
    assert "answered 500: out of order" in shown["error"] and str(run.path) in shown["command"]
    service.mode = "ok"
    later = subprocess.run(shown["command"], shell=True, capture_output=True, text=True)
    assert later.returncode == 0, later.stderr
    assert service.steps() == list(range(1, 31)) and state_of(run).phase == "done"


def test_a_run_has_one_follower_for_each_tracker(
    tmp_path: Path, service: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "LOCK_WAIT_S", 0.1)
    run = mlflow_run(tmp_path, service, 3)
    with lock_follower(run, "mlflow") as first:
        assert first and state_module.page_state(run, "mlflow")["is_alive"]
        with lock_follower(run, "mlflow") as second, lock_follower(run, "trackio") as other:
            assert (second, other) == (False, True)
    assert not state_module.page_state(run, "mlflow")["is_alive"]


def test_a_key_is_sent_only_to_the_service_of_the_environment(
    tmp_path: Path, service: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = mlflow_run(tmp_path, service, 3)
    for own, sent in (("http://127.0.0.1:1", None), (service.address, "Bearer secret")):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", own)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
        service.authorizations.clear()
        program.drop_foreign_keys("mlflow", run.read_config())
        assert follower_of(run).follow() and service.authorizations == {sent}
    written = "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())
    assert "secret" not in written


def test_a_password_in_the_address_is_sent_and_shown_nowhere(
    tmp_path: Path, service: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    address = service.address.replace("//", "//me:s3cret%21@")
    for mode in ("ok", "500"):
        service.mode = mode
        run = make_run(tmp_path / mode, 3, forward_to="mlflow")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert follower_of(run, give_up_s=0.2).follow() is (mode == "ok")
        assert "s3cret" not in str(state_module.page_state(run, "mlflow"))
    assert service.authorizations == {"Basic " + base64.b64encode(b"me:s3cret!").decode()}


def test_a_full_disk_stops_nothing(
    tmp_path: Path, service: FakeMlflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = mlflow_run(tmp_path, service, 30)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    following = follower_of(run)
    monkeypatch.setattr(state_module, "write", fail)
    assert following.follow() and service.steps() == list(range(1, 31))
    assert "the position could not be written" in capsys.readouterr().out


def test_a_run_that_is_resumed_while_its_end_is_sent_goes_on(tmp_path: Path, service: FakeMlflow) -> None:
    run = mlflow_run(tmp_path, service, 10, state="stopped")
    following = follower_of(run)
    opened = following._open
    lock: list[int] = []

    def open_tracker(state: state_module.ForwardState) -> Any:
        tracker = opened(state)
        close = tracker.close

        def close_slowly(end_state: str) -> None:
            close(end_state)
            if lock:
                return
            lock.append(run.acquire_lock())
            append(run, [(100.0, "state", {"state": "running", "reason": "Resumed."}), *steps(11, 20)])
            timer = threading.Timer(0.2, lambda: (end(run), os.close(lock[0])))
            timer.start()

        tracker.close = close_slowly
        return tracker

    following._open = open_tracker  # type: ignore[method-assign]
    assert following.follow()
    assert service.steps() == list(range(1, 21))
    assert [stored["status"] for stored in service.runs.values()] == ["FINISHED"]


def follow_live(run: RunDirectory, scenario: Callable[[], None], **limits: Any) -> bool:
    """Follow a live run in this thread, whose signals end slow calls; the run ends after the scenario."""
    lock = run.acquire_lock()
    failed: list[BaseException] = []

    def play() -> None:
        try:
            scenario()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)
        finally:
            end(run)
            os.close(lock)

    following = follower_of(run, **limits, give_up_s=0.5)
    thread = threading.Thread(target=play)
    thread.start()
    is_done = following.follow()
    thread.join()
    if failed:
        raise failed[0]
    return is_done
