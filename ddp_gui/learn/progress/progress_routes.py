"""The live routes of progress: one's own, and the class's as a table for teachers."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from fastapi.responses import Response

from ddp_gui.auth import rights
from ddp_gui.auth.rights import NotAllowedError
from ddp_gui.background.workers import Router
from ddp_gui.learn.library import Library
from ddp_gui.learn.progress.class_table import as_csv
from ddp_gui.learn.progress.progress_files import ProgressFiles


def make_router(files: ProgressFiles, library: Library, *, has_login: bool) -> Router:
    """Return the routes below `/live/learn`."""
    router = Router(prefix="/live/learn")

    @router.get("/progress")
    def progress() -> dict[str, Any]:
        return {"progress": files.of_current_user()}

    @router.get("/class.csv")
    def table() -> Response:
        try:
            rights.require_teacher("see who did which lesson")
        except NotAllowedError as error:
            raise HTTPException(status_code=403, detail=str(error)) from error
        if not has_login:
            raise HTTPException(status_code=404, detail="nobody logs in here, so nobody's lessons are known")
        made = as_csv(files.everybody(), library.read()[0])
        headers = {"Content-Disposition": 'attachment; filename="lessons.csv"'}
        return Response(made, media_type="text/csv; charset=utf-8", headers=headers)

    return router
