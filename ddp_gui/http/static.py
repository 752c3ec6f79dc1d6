"""Our static files, the typeface and plotly.js, cached by the browser."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from trainers.files.paths import ASSETS

SERVED_FOLDERS = ("css", "js", "icons")
TYPEFACE = "live/assets/fonts/inter-4.001-latin.woff2"
_FOR_A_YEAR = "public, max-age=31536000, immutable"


def make_router() -> APIRouter:
    """Return the route of plotly.js: the partial bundle that we need, which compiles five times as fast."""
    router = APIRouter(prefix="/live")

    @router.get("/plotly.min.js")
    def plotly(request: Request) -> Response:
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"Cache-Control": _FOR_A_YEAR, "Vary": "Accept-Encoding"}
        if takes_gzip:
            headers["Content-Encoding"] = "gzip"
        body = _plotly_compressed() if takes_gzip else _plotly_file().read_bytes()
        return Response(body, media_type="text/javascript", headers=headers)

    # Only the file itself: its licence and its description are for people who read the source.
    @router.get(TYPEFACE.removeprefix("live"))
    def typeface() -> FileResponse:
        path = ASSETS.parent / TYPEFACE.removeprefix("live/")
        return FileResponse(path, media_type="font/woff2", headers={"Cache-Control": _FOR_A_YEAR})

    return router


def mount_assets(app: FastAPI) -> None:
    """Serve the folders of `assets/` that a browser needs, and no others."""
    for folder in SERVED_FOLDERS:
        app.mount(f"/live/assets/{folder}", _AlwaysAsked(directory=ASSETS / folder))


class _AlwaysAsked(StaticFiles):
    """Makes the browser revalidate each time, so that no page is stale after an update."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def plotly_version() -> str:
    """Return the version that makes a browser fetch plotly.js again after an update."""
    about = _plotly_file().stat()
    return f"{about.st_size:x}{int(about.st_mtime):x}"


def _plotly_file() -> Path:
    return ASSETS / "vendor" / "plotly-basic.min.js"


@functools.cache
def _plotly_compressed() -> bytes:
    return gzip.compress(_plotly_file().read_bytes(), compresslevel=6)
