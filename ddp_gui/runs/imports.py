"""Transfers runs between machines: the route of a run as a zip, and the import of such a zip."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from fastapi import HTTPException

from ddp_gui.auth import rights
from ddp_gui.background.workers import SLOW, GeneratedFile, Router, SlowProcessError, module_output
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.launch import launcher
from ddp_gui.operations import Rate, operation
from ddp_gui.runs import listing, run_zip
from ddp_gui.runs.runs import RunStore
from trainers.contract import rundir
from trainers.contract.rundir import RunDirectory, file_stem
from trainers.files import plain_files, private_files

FOLDER = ".import"
FORGOTTEN_AFTER_S = 3_600.0
IMPORT_RATE = Rate("an import", 10, within_s=600.0)


def refuse_to_continue(run: RunDirectory) -> None:
    """Refuse to resume an imported run.

    Raises:
        ValueError: if the run was imported.
    """
    if listing.read_imported(run) is not None:
        raise ValueError(
            f"run {run.run_id} was imported, and imported runs cannot be resumed. Use “Run again with "
            "changes” to start a new run"
        )


def make_router(store: RunStore) -> Router:
    """Return the route of a run as a zip."""
    router = Router(prefix="/live/runs")

    @router.get("/{run_id}/run.zip")
    @SLOW.handler
    def download(run_id: str, checkpoint: bool = False) -> GeneratedFile:
        run = store.open(run_id)
        if not run.events.is_file():
            raise HTTPException(status_code=409, detail=f"run {run_id} has no events yet")
        request = {"run": str(run.path.absolute()), "with_checkpoint": checkpoint}
        return GeneratedFile(
            SLOW, module_output(run_zip.MODULE, request), f"{file_stem(run_id)}-run.zip", "application/zip"
        )

    return router


class ImportApi:
    """The operation that imports a run."""

    def __init__(self, store: RunStore, uploads: Uploads, check_disk_space: Callable[[str], None]) -> None:
        """Create the operation.

        Args:
            check_disk_space: raises ValueError if this user may not store more.
        """
        self.store = store
        self._uploads = uploads
        self._refuse_for_disk = check_disk_space

    @operation(rate=IMPORT_RATE, workers=SLOW)
    def import_run(self, uploaded: str) -> dict[str, Any]:
        """Import a run from an uploaded zip; the current user becomes its owner."""
        source = self._uploads.find(uploaded)
        try:
            person = rights.current_user().name
            self._refuse_for_disk(person)
            run, imported = import_zip(self.store.runs_dir, source, person)
        finally:
            shutil.rmtree(source.parent, ignore_errors=True)
        self.store.read_again([run.run_id])
        message = f"Imported as {run.run_id}: {imported['words']}."
        return {"run_id": run.run_id, "imported": imported, "message": message}


def import_zip(runs_dir: Path, source: Path, owner: str) -> tuple[RunDirectory, dict[str, Any]]:
    """Import a zip as a new run of this owner (empty: none); return the run and its `Imported` record.

    Raises:
        ValueError: if the zip is refused.
        OSError: if the run cannot be written.
    """
    runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    import_folder = private_files.make_folder(runs_dir / FOLDER)
    _tidy(import_folder)
    folder = Path(tempfile.mkdtemp(dir=import_folder))
    try:
        _unpack_in_process(source, folder)
        run = RunDirectory(folder)
        if owner:
            rights.note_owner(run, owner)
        folder.chmod(private_files.run_mode(runs_dir))
        imported = listing.read_imported(run)
        assert imported is not None
        return _move_to_list(runs_dir, run, imported["origin"]), imported
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack_in_process(source: Path, folder: Path) -> None:
    """Unpack in a separate process, so that the page stays responsive and a bomb cannot fill its memory."""
    try:
        output = b"".join(
            module_output(run_zip.MODULE, {"zip": str(source.absolute()), "folder": str(folder.absolute())})
        )
    except SlowProcessError as error:
        raise ValueError("the zip cannot be read: unpacking it failed or took too much memory") from error
    if problem := orjson.loads(output)["problem"]:
        raise ValueError(problem)


def _move_to_list(runs_dir: Path, run: RunDirectory, origin: str) -> RunDirectory:
    """Move a run into the list, with its original id if this is free and users see each other's runs."""
    numbering = launcher.numbering(runs_dir)
    first_ids = (
        [origin] if numbering is None and rundir.is_run_id(origin) and file_stem(origin) == origin else []
    )
    for run_id in itertools.chain(first_ids, rundir.next_run_ids(runs_dir, run.read_config(), numbering)):
        target = RunDirectory(runs_dir / run_id)
        if target.path.exists() or target.path.is_symlink():
            continue
        try:
            run.path.rename(target.path)
        except (FileExistsError, NotADirectoryError):
            continue
        except OSError:
            if not target.path.exists():
                raise
            continue
        return target
    raise AssertionError("numbers do not end")


def _tidy(import_folder: Path) -> None:
    """Delete leftovers of killed imports."""
    for path in import_folder.iterdir():
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - FORGOTTEN_AFTER_S:
                plain_files.remove(path)
