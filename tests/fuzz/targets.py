"""The contract of each reader for arbitrary bytes: return a result or raise its module's error."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import orjson

from ddp_gui.events import event_reader, run_view
from ddp_gui.events.event_reader import Digest
from ddp_gui.events.run_view import RunView
from ddp_gui.runs import exports, listing
from ddp_gui.runs.listing import make_row
from trainers.contract import events, manifests, tickets
from trainers.contract.commands import Incoming
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataOptions
from trainers.data.own import image_files
from trainers.data.own.cache import META, PreparedData
from trainers.data.own.dataset import Own
from trainers.data.own.problems import DataError
from trainers.engines import liveness

# In memory where the system supports it: a target runs a hundred times a second.
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a temporary folder."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="fuzz-") as folder:
        yield Path(folder)


def read_events(data: bytes) -> None:
    """Readers return the same events however the file grew; the page shows every file, however damaged.

    The first byte is the length of the pieces in which the rest is appended.
    """
    piece_bytes = data[0] + 1 if data else 1
    content = data[1:]
    with private_folder() as folder:
        run = RunDirectory(folder / "run-1")
        run.path.mkdir()
        run.config.write_text("{}")
        run.events.write_bytes(content)
        whole = list(_tail(_carefully, run.events))
        assert list(events.read_all(run.events)) == whole
        assert events.last(run.events) == (whole[-1] if whole else None)
        assert events.last_state(run.events) in (None, *events.STATES)
        show(run)
        assert _grown(run.events, content, piece_bytes) == whole


# Other files of a run that other programs may have written.
CONTRACT_FILES = (
    "config.json",
    "status.json",
    "queued.json",
    "granted.json",
    "notes.json",
    "commands.jsonl",
    "checkpoints/step_2/manifest.json",
    "checkpoints/step_2/state.json",
)


def read_contract(data: bytes) -> None:
    """One of a run's files, selected by the first byte, is read or refused with an error message."""
    name = CONTRACT_FILES[data[0] % len(CONTRACT_FILES)] if data else CONTRACT_FILES[0]
    with private_folder() as folder:
        run = RunDirectory(folder / "run-1")
        (run.checkpoints / "step_2").mkdir(parents=True)
        run.config.write_text("{}")
        (run.path / name).write_bytes(data[1:])
        requests = Incoming(run.commands, 0)
        checkpoints = run.list_checkpoints()
        for read in (
            run.read_config,
            lambda: liveness.read_status(run),
            lambda: tickets.read_queued(run),
            lambda: tickets.read_granted(run),
            lambda: listing.read_notes(run),
            lambda: list(requests.read()),
            lambda: manifests.latest_intact(run),
            *(partial(manifests.find_fault, item) for item in checkpoints),
            *(partial(manifests.read_state, item) for item in checkpoints),
        ):
            try:
                read()  # type: ignore[operator]
            except ValueError as error:
                _says_why(error)


def show(run: RunDirectory) -> bytes:
    """Return the messages that the server sends to a page about a run, and its row of the list."""
    view = RunView(run, 10)
    view.catch_up()
    # Sampling is meant for long files; with the default, each of these files is read 250 times.
    with mock.patch.object(event_reader, "NUM_SAMPLE_BLOCKS", 3):
        sent = run_view.encode_message(run_view.message_for(view, -1)) + run_view.encode_message(
            run_view.preview_message(view)
        )
    digest = Digest()
    digest.catch_up(run.events)
    row = make_row(run, dict.fromkeys(("expected_steps", "config_name"), None), digest, 0.0)
    for kind in ("csv", "tfevents"):
        sent += b"".join(getattr(exports, f"{kind}_pieces")(run))
    return sent + orjson.dumps(row) + b"".join(exports.json_pieces(run, {}))


def read_data(data: bytes, suffix: str, **options: Any) -> bool:
    """User data is prepared and described, or refused with its problems. Return True if it was prepared."""
    with private_folder() as folder:
        path = folder / f"data{suffix}"
        path.write_bytes(data)
        own = Own(DataOptions(path=str(path), **options))
        try:
            look: Any = own.kind.inspect(own.problems)
            own.problems.check(str(path))
            json.dumps(own.kind.about(look), allow_nan=False)
            own.kind.estimate(look)
            (folder / "made").mkdir()
            meta = own.kind.prepare(look, folder / "made", own.problems)
        except DataError as error:
            return not _says_why(error)
        assert own.fingerprint
        (folder / "made" / META).write_text(json.dumps(meta, allow_nan=False), "utf-8")
        spec = own.kind.spec(PreparedData(folder / "made"))
        assert spec.num_train > 0 and spec.num_validation > 0
        return True


class OneImage:
    """The files of a folder with one image."""

    files: Sequence[str] = ("image",)
    empty_folders: Sequence[str] = ()

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, name: str) -> BinaryIO:
        """Open the image."""
        return io.BytesIO(self._data)


def read_image(data: bytes) -> None:
    """Header and pixels of an image are read, or an error states the reason."""
    source: Any = OneImage(data)
    list(image_files.read_headers(source, ["image"]))
    try:
        image_files.decode(source, "image", (3, 8, 8))
    except image_files.UnreadableImageError as error:
        _says_why(error)


def _tail(read: Callable[[Path, int], tuple[list[events.Event], int]], path: Path) -> Iterator[events.Event]:
    offset = 0
    while True:
        batch, after = read(path, offset)
        yield from batch
        if after == offset:
            return
        offset = after


def _grown(path: Path, content: bytes, piece_bytes: int) -> list[events.Event]:
    """Read a file between writes of a few bytes each."""
    found: list[events.Event] = []
    offset = 0
    path.write_bytes(b"")
    with path.open("ab") as file:
        for start in range(0, len(content), piece_bytes):
            file.write(content[start : start + piece_bytes])
            file.flush()
            batch, offset = _carefully(path, offset)
            found += batch
    return found


def _says_why(error: ValueError) -> bool:
    assert str(error).strip()
    return True


def _carefully(path: Path, offset: int) -> tuple[list[events.Event], int]:
    batch, end, _ = event_reader.read_batch(path, offset)
    return batch, end
