"""The routes that give a run as files for other machines: all to be shown, or one to be downloaded."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import HTTPException, Query
from fastapi.responses import Response

from ddp_gui.background.workers import Router
from ddp_gui.devices import capacity
from ddp_gui.events.run_view import RunView
from ddp_gui.launch.elsewhere import job as jobs
from ddp_gui.launch.elsewhere.job import Job
from ddp_gui.launch.elsewhere.targets import TARGETS
from ddp_gui.plan.plan import shown_run_dir
from ddp_gui.run.stream import view_or_404
from ddp_gui.runs.runs import RunStore
from trainers.contract import config as config_module
from trainers.engines import liveness
from trainers.files.paths import REPOSITORY

_FEWEST_BY_DEFAULT = 2  # one machine is what the page itself is for
_MOST = config_module.settings()["num_nodes"].maximum

NumNodes = Annotated[int | None, Query(ge=1, le=_MOST)]


def make_router(store: RunStore) -> Router:
    """Return the routes of a run's files for other machines."""
    router = Router(prefix="/live/runs/{run_id}/elsewhere")

    @router.get("")
    def files(run_id: str, num_nodes: NumNodes = None, gpus: bool | None = None) -> dict[str, Any]:
        view = view_or_404(store, run_id)
        job = _job_of(view, num_nodes, gpus)
        strategy = store.catalogue_for(view.run, job.config).strategies.get(job.config.strategy)
        num_replicas = job.config.num_replicas(strategy.ranks_per_replica if strategy else "one")
        return {
            "num_nodes": job.num_nodes,
            "max_nodes": _MOST,
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
        view = view_or_404(store, run_id)
        if target not in TARGETS:
            allowed = ", ".join(TARGETS)
            raise HTTPException(status_code=404, detail=f"there is no such file; there are: {allowed}")
        job = _job_of(view, num_nodes, gpus)
        name = TARGETS[target].file_name(job)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return Response(TARGETS[target].make(job), media_type="text/plain; charset=utf-8", headers=headers)

    return router


def _job_of(view: RunView, num_nodes: int | None, gpus: bool | None) -> Job:
    config = view.config
    here = capacity.read(liveness.engine_to_ask(view.run), config)
    return jobs.of_run(
        view.run,
        config,
        runs_dir=shown_run_dir(view.run.path.parent),
        project=str(REPOSITORY),
        num_nodes=num_nodes or max(_FEWEST_BY_DEFAULT, config.num_nodes),
        with_gpus=here.device_kind(config.device) == "cuda" if gpus is None else gpus,
    )
