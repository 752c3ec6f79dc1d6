"""The routes of who saw what: a picture of an epoch, and the way of one sample through all of them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import HTTPException, Query

from ddp_gui.background.workers import SLOW, Router
from ddp_gui.events.run_view import RunView
from ddp_gui.run import sample_picture
from ddp_gui.run.sample_picture import By
from ddp_gui.run.stream import view_or_404
from ddp_gui.run.who_saw_what import NO_SET_EPOCH, Piece, Sampling, sampling_of
from ddp_gui.runs.runs import RunStore

MOST = 2**53  # as far as a browser counts
Number = Annotated[int, Query(ge=0, le=MOST)]


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs/…/samples`."""
    router = Router(prefix="/live/runs/{run_id}/samples")

    @router.get("")
    @SLOW.handler
    def picture(
        run_id: str, epoch: Number = 0, by: By | None = None, first: Number = 0, last: Number = MOST
    ) -> dict[str, Any]:
        view = view_or_404(store, run_id)
        sampling, num_epochs = _sampling(store, view), view.config.num_epochs
        ways = sample_picture.ways(sampling)
        if epoch >= num_epochs:
            raise HTTPException(
                status_code=422, detail=f"epoch is {epoch}, but allowed is: 0 to {num_epochs - 1}"
            )
        by = by if by in ways else next(iter(ways), None)
        first = min(first, sampling.num_samples - 1)
        end = min(max(first, last) + 1, sampling.num_samples)
        return {
            "epoch": epoch,
            "num_epochs": num_epochs,
            "num_samples": sampling.num_samples,
            "mistake": sampling.mistake,
            "is_shuffled_anew": sampling.mistake != NO_SET_EPOCH,
            "times_seen": sample_picture.times_seen(sampling, epoch),
            "pieces": [_said(piece) for piece in sampling.pieces(epoch)],
            "ways": ways,
            "by": by,
            "picture": None if by is None else sample_picture.picture(sampling, epoch, by, first, end),
        }

    @router.get("/{sample}")
    @SLOW.handler
    def one(run_id: str, sample: int) -> dict[str, Any]:
        view = view_or_404(store, run_id)
        sampling = _sampling(store, view)
        if "sample" not in sample_picture.ways(sampling):
            most = sample_picture.MOST_SHUFFLED
            raise HTTPException(
                status_code=422,
                detail=f"the order of more than {most:,} samples is not computed here",
            )
        if not 0 <= sample < sampling.num_samples:
            allowed = f"0 to {sampling.num_samples - 1}"
            raise HTTPException(status_code=422, detail=f"sample is {sample}, but allowed is: {allowed}")
        epochs, is_all = sample_picture.where_seen(sampling, sample, view.config.num_epochs)
        return {"sample": sample, "epochs": epochs, "is_all": is_all}

    return router


def _sampling(store: RunStore, view: RunView) -> Sampling:
    view.catch_up()
    config = view.config
    strategy = store.catalogue_for(view.run, config).strategies.get(config.strategy)
    num_replicas = config.num_replicas(strategy.ranks_per_replica if strategy else "one")
    with view.lock:
        sampling = sampling_of(config, view.series.plans, num_replicas)
    if sampling is None:
        detail = "how the samples are dealt out is known once the run has begun to train"
        raise HTTPException(status_code=404, detail=detail)
    return sampling


def _said(piece: Piece) -> dict[str, Any]:
    return vars(piece) | {
        "num_steps": piece.num_steps,
        "global_batch": piece.global_batch,
        "last_shares": piece.last_shares(),
    }
