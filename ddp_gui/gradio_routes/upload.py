"""Receives uploads instead of Gradio, which would store equal files of several people in one folder."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from gradio.route_utils import GradioMultiPartParser
from gradio_client.utils import strip_invalid_filename_characters
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from ddp_gui.gradio_routes.uploads import MAX_BYTES, NoRoomError, Uploads
from ddp_gui.http.asgi import Receive, Refused, Scope, Send

NOT_A_FORM = "An upload must be one file, sent as a form."


async def take(uploads: Uploads, scope: Scope, receive: Receive, send: Send) -> None:
    """Store one file in a folder of its own and answer as Gradio does: with a list of its path.

    Raises:
        Refused: when there is no room for it, or it is not sent as one file.
    """
    request = Request(scope, receive)
    # The request checks admit no body without a length.
    size_bytes = int(request.headers["content-length"])
    with ExitStack() as stack:
        try:
            place = await asyncio.to_thread(stack.enter_context, uploads.receiving(size_bytes))
        except NoRoomError as error:
            raise Refused(507, f"The server has no room for this file now: {error}.") from error
        try:
            path = await _write(request, place)
        except ClientDisconnect as error:
            raise Refused(400, "The upload was interrupted.") from error
        # Also the parser's error on an invalid boundary.
        except (MultiPartException, ValueError) as error:
            raise Refused(400, NOT_A_FORM) from error
        await JSONResponse([str(path)])(scope, receive, send)


async def _write(request: Request, place: Path) -> Path:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ValueError(NOT_A_FORM)
    # A field that is not a file would be held in memory, whatever its length.
    parser = GradioMultiPartParser(
        request.headers,
        request.stream(),
        max_files=1,
        max_fields=0,
        upload_dir=place,
        max_file_size=MAX_BYTES,
    )
    file = (await parser.parse()).get("files")
    if not isinstance(file, UploadFile):
        raise ValueError(NOT_A_FORM)
    await file.close()
    name = strip_invalid_filename_characters(Path(file.filename or "").name).lstrip(".")
    (written,) = place.iterdir()
    return written.rename(place / (name or "upload"))
