"""Exports a model as a zip with all files to use it elsewhere, in a separate process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from fastapi import HTTPException

from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import (
    SLOW,
    GeneratedFile,
    Router,
    TooManyError,
    Workers,
    file_chunks,
    make_nice,
)
from ddp_gui.events.run_view import RunView
from ddp_gui.operations import SEES_RUN, Rate, operation
from ddp_gui.run import model_card, try_page
from ddp_gui.run.downloads import NO_MODEL
from ddp_gui.runs.runs import RunStore
from trainers.contract import manifests
from trainers.contract.rundir import Checkpoint
from trainers.files.plain_files import REPOSITORY, temporary_folder
from trainers.machine import cuda_environment, environment, lifeline
from trainers.machine.os_errors import explain

MODULE = "trainers.predict.take_home"
LIMIT_S = 900.0
TRY_PAGE = "try.html"
# A zip is deleted after this time, or if there are too many newer ones.
ZIP_LIFETIME_S = 1_800.0
MAX_ZIPS = 8
# Required disk space in multiples of the weights: the exported programs and the zip contain the weights, too.
COPIES = 7
SPARE_BYTES = 2**30
MAX_ERROR_CHARACTERS = 500
PACKING = Workers("models to take home", num_threads=1, per_person=1, max_requests=4)


@dataclass
class Copy:
    """A model export, in progress or finished; `path` is the zip in the server's temporary folder."""

    take_home_id: str
    run_id: str
    person: str
    state: str = "running"
    doing: str = "waiting for other exports"
    done: int = 0
    of: int = 1
    step: int | None = None
    size_bytes: int | None = None
    onnx_problem: str | None = None
    page_problem: str | None = None
    error: str | None = None
    ended: float | None = None
    path: Path | None = None
    page_path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that a user may see."""
        values = asdict(self)
        for name in ("person", "ended", "path", "page_path"):
            del values[name]
        return values


TAKE_HOME_RATE = Rate("a model to take home", 10, within_s=600.0)


@dataclass
class Copies:
    """All model exports of this page; thread-safe. They are deleted when the page ends."""

    store: RunStore
    _copies: dict[str, Copy] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _folder: Path | None = None
    _process: subprocess.Popen[bytes] | None = None
    _at_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @operation(method_checks=SEES_RUN, rate=TAKE_HOME_RATE, counts_itself=True)
    def take_home(self, run_id: str, checkpoint_step: int | None = None) -> dict[str, Any]:
        """Begin to export a run's model as a zip with all files that are needed to use it elsewhere."""
        return self.start(run_id, checkpoint_step).to_json()

    @operation(method_checks=SEES_RUN)
    def taken_home(self, take_home_id: str) -> dict[str, Any]:
        """Return the progress of a model export."""
        return self.find(take_home_id).to_json()

    def start(self, run_id: str, step: Any) -> Copy:
        """Begin to export a model of a run that the current user can see.

        Raises:
            ValueError: if the run or checkpoint does not exist, or its model cannot be loaded.
        """
        view = self.store.view(run_id)
        if view.config.is_broken_on_purpose:
            raise ValueError(NO_MODEL.format(run_id=run_id, mistake=view.config.mistake))
        checkpoint = _checkpoint(view, step)
        TAKE_HOME_RATE.count(self)
        copy = Copy(secrets.token_hex(8), run_id, current_user().name, step=checkpoint.step)
        with self._lock:
            self._forget_old()
            self._copies[copy.take_home_id] = copy
        try:
            PACKING.submit(lambda: self._pack(view, checkpoint, copy))
        except TooManyError:
            with self._lock:
                del self._copies[copy.take_home_id]
            raise
        return copy

    def find(self, take_home_id: str) -> Copy:
        """Return a model export by its id.

        Raises:
            ValueError: if it does not exist, or the current user cannot see the run.
        """
        with self._lock:
            copy = self._copies.get(str(take_home_id)[:40])
        if copy is None or not self.store.is_shown(copy.run_id):
            raise ValueError("this export does not exist; exports are deleted after half an hour")
        return copy

    def close(self) -> None:
        """End the process, and delete all zips. Called when the page ends."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()  # otherwise the process would write into the deleted folder
        self._at_end.close()

    def _forget_old(self) -> None:
        ended = sorted(
            (copy for copy in self._copies.values() if copy.ended), key=lambda copy: copy.ended or 0
        )
        now = time.monotonic()
        for index, copy in enumerate(ended):
            if now - (copy.ended or 0) > ZIP_LIFETIME_S or len(ended) - index >= MAX_ZIPS:
                del self._copies[copy.take_home_id]
                for path in (copy.path, copy.page_path):
                    if path is not None:
                        path.unlink(missing_ok=True)

    def _pack(self, view: RunView, checkpoint: Checkpoint, copy: Copy) -> None:
        """Export the model and record the result; runs in a thread."""
        copy.doing = "reading the checkpoint"
        try:
            if self._folder is None:
                self._folder = self._at_end.enter_context(temporary_folder("ddp-take-home-"))
            name = model_card.archive_name(view.run.run_id, checkpoint.step)
            folder = self._folder / copy.take_home_id / name
            folder.mkdir(parents=True)
            _require_room(folder, checkpoint)
            facts = self._run_export(view, checkpoint, folder, copy)
            copy.doing = "making try.html"
            self._make_page(view, folder, copy, facts)
            view.catch_up()
            (folder / "curve.svg").write_text(model_card.curve(view), encoding="utf-8")
            (folder / "MODEL_CARD.md").write_text(model_card.model_card(view, facts), encoding="utf-8")
            copy.doing = "packing"
            copy.path = self._folder / f"{copy.take_home_id}.zip"
            _zip(folder, copy.path)
            copy.size_bytes = copy.path.stat().st_size
            copy.onnx_problem = facts["onnx_problem"]
            copy.done, copy.doing, copy.state = copy.of, "", "done"
        except (OSError, ValueError, LookupError, TypeError) as error:
            copy.error, copy.state = explain(error), "failed"
        finally:
            copy.ended = time.monotonic()
            if self._folder is not None:
                shutil.rmtree(self._folder / copy.take_home_id, ignore_errors=True)

    def _make_page(self, view: RunView, folder: Path, copy: Copy, facts: dict[str, Any]) -> None:
        """Make try.html, or record why this is not possible."""
        assert self._folder is not None
        if facts["onnx_problem"] is not None:
            copy.page_problem = "it requires model.onnx"
            return
        title = f"{view.config.name or view.run.run_id}, step {facts['step']:,}"
        try:
            content = try_page.try_page(title, facts["about"], folder / "model.onnx")
        except try_page.NoPageError as error:
            copy.page_problem = str(error)
            return
        (folder / TRY_PAGE).write_bytes(content)
        copy.page_path = self._folder / f"{copy.take_home_id}.html"
        copy.page_path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        facts["files"][TRY_PAGE] = {"size_bytes": len(content), "sha256": digest}

    def _run_export(self, view: RunView, checkpoint: Checkpoint, folder: Path, copy: Copy) -> dict[str, Any]:
        """Run the process that needs torch; return the facts that it prints at the end."""
        request = {"run_dir": str(view.run.path.absolute()), "step": checkpoint.step, "folder": str(folder)}
        facts: dict[str, Any] | None = None
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                lifeline.bound(sys.executable, "-m", MODULE),
                cwd=REPOSITORY,
                env=environment.for_a_child(cuda_environment.none_visible()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as process,
        ):
            self._process = process
            make_nice(process)
            timer = threading.Timer(LIMIT_S, process.kill)
            timer.start()
            try:
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(orjson.dumps(request))
                    process.stdin.close()
                for line in process.stdout:
                    message = json.loads(line)
                    if "facts" in message:
                        facts = message["facts"]
                    else:
                        copy.doing, copy.done, copy.of = message["doing"], message["done"], message["of"]
            finally:
                timer.cancel()
                process.kill()
            if facts is None:
                errors.seek(0)
                last_output = errors.read().decode("utf-8", errors="replace").strip()[-MAX_ERROR_CHARACTERS:]
                raise ValueError(
                    f"the process that packs the model ended early: {last_output or 'it was killed'}"
                )
        if "error" in facts:
            raise ValueError(facts["error"])
        return facts


def make_router(copies: Copies) -> Router:
    """Return the route of the finished zips."""
    router = Router(prefix="/live/runs/{run_id}/take_home")

    @router.get("/{take_home_id}")
    @SLOW.handler
    def download(run_id: str, take_home_id: str) -> GeneratedFile:
        copy = find_finished(run_id, take_home_id)
        assert copy.path is not None and copy.step is not None
        name = model_card.archive_name(run_id, copy.step)
        return GeneratedFile(SLOW, file_chunks(copy.path), f"{name}.zip", "application/zip")

    @router.get("/{take_home_id}/try.html")
    @SLOW.handler
    def page(run_id: str, take_home_id: str) -> GeneratedFile:
        copy = find_finished(run_id, take_home_id)
        if copy.page_path is None or copy.step is None:
            detail = f"this model has no {TRY_PAGE}: {copy.page_problem}"
            raise HTTPException(status_code=404, detail=detail)
        name = model_card.archive_name(run_id, copy.step)
        return GeneratedFile(SLOW, file_chunks(copy.page_path), f"{name}-try.html", "text/html")

    def find_finished(run_id: str, take_home_id: str) -> Copy:
        try:
            copies.store.open(run_id)
            copy = copies.find(take_home_id)
        except ValueError as error:
            raise HTTPException(status_code=404, detail=explain(error)) from error
        if copy.run_id != run_id or copy.path is None or copy.state != "done":
            raise HTTPException(status_code=404, detail="this export is not finished yet")
        return copy

    return router


def _checkpoint(view: RunView, step: Any) -> Checkpoint:
    checkpoints = view.run.list_checkpoints()
    if not checkpoints:
        raise ValueError(f"run {view.run.run_id} has no checkpoint yet")
    if step is None:
        return max(checkpoints, key=lambda checkpoint: (checkpoint.saved_unix_s, checkpoint.step))
    match = next((checkpoint for checkpoint in checkpoints if checkpoint.step == step), None)
    if match is None:
        steps = ", ".join(f"{checkpoint.step:,}" for checkpoint in checkpoints)
        raise ValueError(
            f"checkpoint_step is {str(step)[:20]}; allowed: the steps with a checkpoint of run "
            f"{view.run.run_id}: {steps}"
        )
    return match


def _require_room(folder: Path, checkpoint: Checkpoint) -> None:
    needed = COPIES * manifests.weights_bytes(checkpoint) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"{folder.parent.parent} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed"
        )


def _zip(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, f"{folder.name}/{path.relative_to(folder).as_posix()}")
