"""Starts, shows and controls runs from a notebook, with the same functions as the page's endpoints. The first
run imports the modules of the page, because importing Gradio takes seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.contract import events
from trainers.files import installation, private_files
from trainers.files.plain_files import PLUGINS_VARIABLE, own_plugins

if TYPE_CHECKING:
    from ddp_gui.events.run_view import RunView
    from ddp_gui.notebook.live import LiveView

RUNS_DIR = installation.default_runs_dir()
WAIT_EVERY_S = 0.5


class PageSession:
    """The page's operations on one folder of runs, without a server."""

    def __init__(self, runs_dir: Path) -> None:
        """Open the folder, and create it if it does not exist.

        Raises:
            OSError: if the folder cannot be used.
            ValueError: if another user can change the plug-ins next to it.
        """
        # Variable that Gradio reads at import.
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
        from ddp_gui.auth.rights import DataAccess
        from ddp_gui.gradio_routes import uploads
        from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
        from ddp_gui.queue.policy import QueueDevices
        from ddp_gui.queue.presenter import QueuePresenter
        from ddp_gui.queue.scheduler import Scheduler
        from ddp_gui.runs.runs import RunStore
        from ddp_gui.train.api import Api
        from trainers.engines.local.engine import LocalEngine

        self.runs_dir = runs_dir
        # All processes of this kernel inherit this variable, so the first folder of runs determines it.
        if own_plugins() is None and (plugins := private_files.plugins(runs_dir)) is not None:
            os.environ[PLUGINS_VARIABLE] = str(plugins)
        private_files.close_runs(runs_dir)
        # Keep the umask, which also affects other files of the notebook; each run's folder is private.
        umask = os.umask(0o077)
        private_files.begin(runs_dir)
        os.umask(umask)
        self.store = RunStore(runs_dir, CatalogueSource(default_cache_file()))
        scheduler = Scheduler(runs_dir, QueueDevices(runs_dir, None), self.store.read_again, LocalEngine())
        access = DataAccess(uploads.uploads_folder(runs_dir), ())
        self.api = Api(self.store, scheduler, QueuePresenter(scheduler, self.store), access)
        # Start queued runs in a thread, like every page on this folder.
        scheduler.begin()


@functools.cache
def _session(runs_dir: Path) -> PageSession:
    return PageSession(runs_dir)


def start(
    *,
    gpus: int | None = None,
    runs_dir: Path | str = RUNS_DIR,
    use_occupied_gpus: bool = False,
    **fields: Any,
) -> Run:
    """Start or queue a run; missing fields get the values that the page's form would fill in.

    Args:
        gpus: alias of the field `nproc_per_node`, the number of ranks, with one GPU each. Without GPUs the
            ranks run on the CPU.
        runs_dir: the folder of the runs, which a page may also use.
        use_occupied_gpus: True to also use GPUs on which other programs run.
        fields: fields of the configuration (docs/configuration.md).

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """
    if gpus is not None:
        if "nproc_per_node" in fields:
            raise ValueError("gpus is an alias of nproc_per_node: pass only one of them")
        fields["nproc_per_node"] = gpus
    session = _session(Path(runs_dir).resolve())
    with _plain_errors():
        started = _result_of(session.api.start_run(fields, use_occupied_gpus))
    return Run(session, started["run_id"])


def open_run(run_id: str, runs_dir: Path | str = RUNS_DIR) -> Run:
    """Return an existing run, such as one that was started before the kernel restarted.

    Raises:
        ValueError: if it does not exist.
    """
    session = _session(Path(runs_dir).resolve())
    session.store.open(run_id)
    return Run(session, run_id)


class Run:
    """A run of the folder. As the last expression of a cell, it shows a live view."""

    def __init__(self, session: PageSession, run_id: str) -> None:
        self.run_id = run_id
        self._session = session
        self._live: LiveView | None = None

    def status(self) -> dict[str, Any]:
        """Return the result of the endpoint `/run_status` (docs/endpoints.md)."""
        with _plain_errors():
            return dict(self._session.api.run_status(self.run_id))

    @property
    def state(self) -> str:
        """The state, such as queued, running or finished (docs/run-directory.md)."""
        return str(self.status()["state"])

    @property
    def loss(self) -> float | None:
        """The training loss of the latest step; None before the first step, or if it is NaN or infinite."""
        loss: float | None = self.status()["loss"]
        return loss

    @property
    def step(self) -> int:
        """The latest step."""
        return int(self.status()["step"])

    @property
    def error(self) -> str | None:
        """Why the run failed, or None."""
        error: str | None = self.status()["error"]
        return error

    @property
    def path(self) -> Path:
        """The run directory (docs/run-directory.md)."""
        return self._session.store.open(self.run_id).path

    def stop(self, *, save: bool = True) -> str:
        """Stop the run, by default after saving a checkpoint; return a message."""
        with _plain_errors():
            answer = self._session.api.stop_run(self.run_id, save)
        return str(answer["message"])

    def checkpoint(self) -> str:
        """Save a checkpoint without stopping the run; return a message."""
        return self._send("checkpoint", "Saving a checkpoint.")

    def pause(self) -> str:
        """Make all ranks wait after the same step; return a message."""
        return self._send("pause", "Pausing after this step.")

    def resume(self, checkpoint_step: int | None = None) -> str:
        """Continue a paused run, or resume an ended one from a checkpoint, by default the latest."""
        with _plain_errors():
            answer = _result_of(self._session.api.resume_run(self.run_id, checkpoint_step))
        if self._live is not None:
            self._live.follow()
        return str(answer["message"])

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the run has ended or `timeout_s` has passed; return the run's state.

        Interrupting the cell stops waiting, but not the run.
        """
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while (state := self.state) in events.LIVE_STATES:
            if ends_at is not None and time.monotonic() >= ends_at:
                break
            time.sleep(WAIT_EVERY_S)
        return state

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per step, and the columns of the page's CSV export."""
        import pandas

        from ddp_gui.runs import exports

        content = b"".join(exports.csv_pieces(self._session.store.open(self.run_id)))
        return pandas.read_csv(io.BytesIO(content))

    def view(self) -> RunView:
        """Return a view of the run's current events."""
        view = self._session.store.view(self.run_id)
        view.catch_up()
        return view

    def summary(self) -> dict[str, Any]:
        """Return the facts that do not change while the run is live, in the format of the page."""
        from ddp_gui.run.summary import summarise

        return summarise(self.view(), self._session.store)

    def _send(self, name: str, message: str) -> str:
        with _plain_errors():
            self._session.api.send(self.run_id, name, ())
        return message

    def __repr__(self) -> str:
        """Return the name, the state and the loss."""
        status = self.status()
        loss = "" if status["loss"] is None else f", loss {status['loss']:.4f}"
        return f"<Run {self.run_id}: {status['state']}, step {status['step']:,}{loss}>"

    def _repr_mimebundle_(self, **_options: Any) -> Any:
        """Return the live view if anywidget is installed, otherwise the current values."""
        from ddp_gui.notebook import live

        if not live.is_available():
            return {"text/plain": repr(self), "text/html": live.as_html(self)}
        if self._live is None:
            self._live = live.LiveView(self)
        self._live.follow()
        return self._live.bundle()


def _result_of(call: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run an endpoint in a separate thread, because this thread has the kernel's event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="notebook") as thread:
        return thread.submit(asyncio.run, call).result()


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise a ValueError with the message that the page would show."""
    from ddp_gui.operations import USER_ERRORS, error_text

    try:
        yield
    except USER_ERRORS as error:
        raise ValueError(error_text(error)) from None
