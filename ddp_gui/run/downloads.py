"""A checkpoint as one download: its folder as a zip, packed while it is sent."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fastapi import HTTPException

from ddp_gui.background.made_file import MadeFile
from ddp_gui.background.workers import SLOW, Router
from ddp_gui.run.stream import view_or_404
from ddp_gui.runs.runs import RunStore
from trainers.contract.run_ids import file_stem
from trainers.files.plain_files import open_plain

NO_MODEL = (
    "run {run_id} was broken on purpose ({mistake}): what it has learnt is no good model, so its weights "
    "are not given away. Its numbers can be exported."
)
PIECE_BYTES = 1024 * 1024
# The valid file names of a checkpoint. A backslash or a drive's colon could escape the folder when unpacked.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.+=-]+")


def make_router(store: RunStore) -> Router:
    """Return the route of a run's checkpoints."""
    router = Router(prefix="/live/runs/{run_id}/checkpoints")

    @router.get("/{step}/download")
    @SLOW.handler
    def download(run_id: str, step: int) -> MadeFile:
        view = view_or_404(store, run_id)
        run, mistake = view.run, view.config.mistake
        if view.config.is_broken_on_purpose:
            raise HTTPException(status_code=409, detail=NO_MODEL.format(run_id=run_id, mistake=mistake))
        found = next((item for item in run.list_checkpoints() if item.step == step), None)
        if found is None:
            raise HTTPException(status_code=404, detail=f"run {run_id} has no checkpoint of step {step:,}")
        name = f"{file_stem(run.run_id)}-step-{step}"
        return MadeFile(SLOW, zip_of(found.path, name), f"{name}.zip", "application/zip")

    return router


def zip_of(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip of a folder's files, below a folder of this name, uncompressed: weights do not shrink.

    Links, and files with names that no checkpoint has, are left out.

    Raises:
        OSError: when a file cannot be read, perhaps because the checkpoint has just been deleted.
    """
    written = _Pipe()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if _is_packed(path, folder)):
            entry = zipfile.ZipInfo.from_file(path, f"{name}/{path.relative_to(folder)}")
            with open_plain(path) as source, archive.open(entry, "w", force_zip64=True) as target:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
                    yield written.take()
    yield written.take()


def _is_packed(path: Path, folder: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    return all(_PLAIN_NAME.fullmatch(part) for part in path.relative_to(folder).parts)


class _Pipe(io.RawIOBase):
    """Buffers what the archive writes until it is sent; not seekable."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(memoryview(data))  # type: ignore[arg-type]
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        """Return what has been written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
