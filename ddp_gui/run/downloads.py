"""Downloads of a run: checkpoints, configuration and scripts for other schedulers."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import HTTPException, Query
from fastapi.responses import Response

from ddp_gui.background.workers import SLOW, GeneratedFile, Router, file_chunks
from ddp_gui.devices import capacity
from ddp_gui.events.run_view import RunView
from ddp_gui.launch import elsewhere
from ddp_gui.launch.as_code import script
from ddp_gui.launch.elsewhere import TARGETS, ExportedJob
from ddp_gui.plan.plan import shown_run_dir
from ddp_gui.runs import exports
from ddp_gui.runs.runs import RunStore
from trainers.contract import config as config_module
from trainers.contract import manifests
from trainers.contract.rundir import file_stem
from trainers.engines import liveness
from trainers.files.plain_files import REPOSITORY

NO_MODEL = (
    "run {run_id} was broken on purpose ({mistake}): its model is not useful, so its weights "
    "cannot be downloaded. Its numbers can be exported."
)
# Valid file names in a checkpoint. A name with a backslash or a colon could be unpacked elsewhere.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.+=-]+")


def make_download_router(store: RunStore) -> Router:
    """Return the route of a run's checkpoints."""
    router = Router(prefix="/live/runs/{run_id}/checkpoints")

    @router.get("/{step}/download")
    @SLOW.handler
    def download(run_id: str, step: int) -> GeneratedFile:
        view = store.view(run_id)
        run, mistake = view.run, view.config.mistake
        if view.config.is_broken_on_purpose:
            raise HTTPException(status_code=409, detail=NO_MODEL.format(run_id=run_id, mistake=mistake))
        checkpoint = next((item for item in run.list_checkpoints() if item.step == step), None)
        if checkpoint is None:
            raise HTTPException(status_code=404, detail=f"run {run_id} has no checkpoint of step {step:,}")
        name = f"{file_stem(run.run_id)}-step-{step}"
        return GeneratedFile(SLOW, zip_folder(checkpoint.path, name), f"{name}.zip", "application/zip")

    return router


def zip_folder(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip of a folder's files below a top-level folder `name`, uncompressed: weights do not shrink.

    Links, and files whose names are not valid in a checkpoint, are omitted.

    Raises:
        OSError: if a file cannot be read, for example because the checkpoint was deleted.
    """
    paths = sorted(path for path in folder.rglob("*") if _is_packed(path, folder))
    files = ((f"{name}/{path.relative_to(folder)}", partial(file_chunks, path)) for path in paths)
    return exports.zip_pieces(files, zipfile.ZIP_STORED)


def _is_packed(path: Path, folder: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    return all(_PLAIN_NAME.fullmatch(part) for part in path.relative_to(folder).parts)


_DEFAULT_NUM_NODES = 2  # for a single machine, the page itself is enough
_MAX_NODES = config_module.settings()["num_nodes"].maximum

NumNodes = Annotated[int | None, Query(ge=1, le=_MAX_NODES)]


def make_elsewhere_router(store: RunStore) -> Router:
    """Return the routes of the files that start a run on other machines."""
    router = Router(prefix="/live/runs/{run_id}/elsewhere")

    @router.get("")
    def files(run_id: str, num_nodes: NumNodes = None, gpus: bool | None = None) -> dict[str, Any]:
        view = store.view(run_id)
        job = _make_job(view, num_nodes, gpus)
        strategy = store.catalogue_for(view.run, job.config).strategies.get(job.config.strategy)
        num_replicas = job.config.num_replicas(strategy.ranks_per_replica if strategy else "one")
        return {
            "num_nodes": job.num_nodes,
            "max_nodes": _MAX_NODES,
            "gpus": job.with_gpus,
            "num_ranks": job.config.world_size,
            "global_batch": job.config.global_batch(num_replicas),
            "files": [
                {
                    "name": name,
                    "label": target.label,
                    "what_for": target.what_for,
                    "proof": target.proof,
                    "text": target.make(job),
                }
                for name, target in TARGETS.items()
            ],
        }

    @router.get("/{target}")
    def download(run_id: str, target: str, num_nodes: NumNodes = None, gpus: bool | None = None) -> Response:
        view = store.view(run_id)
        if target not in TARGETS:
            allowed = ", ".join(TARGETS)
            raise HTTPException(status_code=404, detail=f"this file does not exist; available: {allowed}")
        job = _make_job(view, num_nodes, gpus)
        name = f"{job.run_id}{TARGETS[target].ending}"  # ids and endings contain only plain letters
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return Response(TARGETS[target].make(job), media_type="text/plain; charset=utf-8", headers=headers)

    return router


def _make_job(view: RunView, num_nodes: int | None, gpus: bool | None) -> ExportedJob:
    config = view.config
    machine = capacity.read(liveness.engine_for(view.status()), config)
    return elsewhere.job_of_run(
        view.run,
        config,
        runs_dir=shown_run_dir(view.run.path.parent),
        project=str(REPOSITORY),
        num_nodes=num_nodes or max(_DEFAULT_NUM_NODES, config.num_nodes),
        with_gpus=machine.device_kind(config.device) == "cuda" if gpus is None else gpus,
    )


def make_code_router(store: RunStore) -> Router:
    """Return the routes of a run as one script."""
    router = Router(prefix="/live/runs/{run_id}/code")

    @router.get("")
    def show(run_id: str) -> dict[str, Any]:
        return describe_code(store, store.view(run_id))

    @router.get("/{name}")
    def download(run_id: str, name: str) -> Response:
        files = {"train.py": "text/x-python; charset=utf-8", "train.ipynb": "application/x-ipynb+json"}
        code = describe_code(store, store.view(run_id))
        if name not in files:
            raise HTTPException(
                status_code=404, detail=f"this file does not exist; available: {', '.join(files)}"
            )
        if code["reason"] is not None:
            raise HTTPException(status_code=409, detail=code["reason"])
        text = code["train_py"] if name == "train.py" else json.dumps(code["notebook"], indent=1)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return Response(text, media_type=files[name], headers=headers)

    return router


def describe_code(store: RunStore, view: RunView) -> dict[str, Any]:
    """Return a run as one script; see `script.describe`."""
    config = view.config
    catalogue = store.catalogue_for(view.run, config)
    last_step = max((item.step for item in view.run.list_checkpoints()), default=None)
    return script.describe(
        config,
        catalogue.datasets.get(config.dataset),
        catalogue.strategies.get(config.strategy),
        run_id=view.run.run_id,
        num_threads=manifests.recorded_threads(view.run, last_step, config.world_size),
    )
