"""Shows a run in a notebook's output, live with anywidget, otherwise as a table.

The kernel sends all values about once a second. A view that is opened later, or after a reload of the
notebook, therefore needs no answer from the kernel, which may be busy with a cell.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import orjson

from ddp_gui.events import run_view, tables
from ddp_gui.events.run_view import RunView
from ddp_gui.events.tables import ChartView
from ddp_gui.http import bundle, shell
from ddp_gui.run import try_page
from trainers.contract import events
from trainers.machine.os_errors import explain

ENTRY = "notebook/view.js"
STYLES = (
    "shared/colours",
    "shared/base",
    "shared/controls",
    "run/ranks",
    "run/page",
    "run/fingerprints",
    "notebook/view",
)
CURVES = ("loss", "loss_smooth", "validation_loss")
OF_A_RANK = ("utilization:", "memory:", "temperature:", "power:")
MAX_POINTS = 400
MAX_POINTS_OF_A_DEVICE = 120
LOOK = ChartView(smoothing=30)
SENT = ("head", "ranks", "devices", "nodes", "rank_history", "insights", "fingerprints", "checkpoints")
SEND_EVERY_S = 1.0
# Maximum interval between messages of a live run; a longer silence means a busy or restarted kernel.
NEWS_EVERY_S = 3.0

Picture = dict[str, Any]


class Viewed(Protocol):
    """A run with its folded events."""

    @property
    def run_id(self) -> str: ...
    def view(self) -> RunView: ...


class Controlled(Viewed, Protocol):
    """A run with the operations of the view's buttons, each of which returns a message."""

    def summary(self) -> dict[str, Any]: ...
    def stop(self) -> str: ...
    def checkpoint(self) -> str: ...


def is_available() -> bool:
    """Return True if anywidget is installed."""
    return importlib.util.find_spec("anywidget") is not None


class LiveView:
    """The widget of one run. A thread updates it until the run has ended."""

    def __init__(self, run: Controlled) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._note: dict[str, Any] = {"number": 0, "text": ""}
        self._num_sent, self._sent_at = 0, 0.0
        facts = {"run_id": run.run_id, "definitions": shell.definitions(), **run.summary()}
        self._widget = _widget_class()(facts=facts, shown=picture_of(run))
        self._widget.on_msg(self._obey)

    def bundle(self) -> Any:
        """Return the widget for the notebook's output."""
        return self._widget._repr_mimebundle_()

    def follow(self) -> None:
        """Update the view, in a thread, until the run has ended."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                name = f"live-{self._run.run_id}"
                self._thread = threading.Thread(target=self._update_until_end, name=name, daemon=True)
                self._thread.start()

    def _update_until_end(self) -> None:
        try:
            while self._send(picture_of(self._run)):
                time.sleep(SEND_EVERY_S)
        except (OSError, ValueError) as error:  # the run was deleted, or its files are invalid
            self._widget.shown = {**self._widget.shown, "gone": explain(error)}

    def _send(self, snapshot: Picture) -> bool:
        """Send the values if they have changed or an update is due; return True if the run is live."""
        previous = self._widget.shown
        is_news = (
            snapshot["cursor"] != previous["cursor"] or snapshot["head"]["state"] != previous["head"]["state"]
        )
        if is_news or time.monotonic() - self._sent_at > NEWS_EVERY_S:
            self._sent_at = time.monotonic()
            self._num_sent += 1  # so that unchanged values are also sent
            self._widget.shown = {**snapshot, "note": self._note, "number": self._num_sent}
        return snapshot["head"]["state"] in events.LIVE_STATES

    def _obey(self, _widget: Any, message: Any, _buffers: Any) -> None:
        """Carry out a button's command and show the answer."""
        does = {"stop": self._run.stop, "checkpoint": self._run.checkpoint}
        action = does.get(str(message.get("do"))) if isinstance(message, dict) else None
        if action is None:
            return
        try:
            text = action()
        except ValueError as error:
            text = str(error)
        self._note = {"number": self._note["number"] + 1, "text": text}
        self._widget.shown = {**self._widget.shown, "note": self._note}


def picture_of(run: Viewed) -> Picture:
    """Return the current values of a run in the format of the page's stream, with fewer points.

    Raises:
        ValueError: if the run no longer exists.
    """
    message = run_view.message_for(run.view(), -1, LOOK)
    sent = {name: message[name] for name in SENT if name in message}
    traces = {name: _thinned(name, trace) for name, trace in message["traces"].items() if _is_shown(name)}
    encoded = run_view.encode_message({**sent, "cursor": message["cursor"], "traces": traces})
    picture: Picture = orjson.loads(encoded)
    return picture


def _is_shown(name: str) -> bool:
    return name in CURVES or name.startswith(OF_A_RANK)


def _thinned(name: str, trace: Mapping[str, Any]) -> dict[str, Any]:
    x, y = np.asarray(trace["x"]), np.asarray(trace["y"], float)
    chosen = tables.thin(x, y, MAX_POINTS if name in CURVES else MAX_POINTS_OF_A_DEVICE)
    return {"x": x[chosen], "y": y[chosen]}


@functools.cache
def _widget_class() -> Any:
    """Return the class of the widget; a notebook receives it without further files."""
    import anywidget
    import traitlets

    names = {
        "_esm": script(),
        "styles": traitlets.Unicode(styles()).tag(sync=True),
        "facts": traitlets.Dict().tag(sync=True),
        "shown": traitlets.Dict().tag(sync=True),
        "__module__": __name__,
    }
    return type("RunWidget", (anywidget.AnyWidget,), names)


def script() -> str:
    """Return the view and all modules of the page that it uses, as one module for anywidget."""
    return f"{bundle.bundle(ENTRY)}\nexport default {{ render: {bundle.variable(ENTRY)}.render }};\n"


def styles() -> str:
    """Return the page's styles, adapted to a shadow root."""
    text = try_page.read_styles(STYLES).replace(":root", ":host")
    return text.replace("\n  .dark {", "\n  :host(.dark) {")


def as_html(run: Viewed) -> str:
    """Return the current values as a table; all text is escaped."""
    snapshot = picture_of(run)
    head, busy = snapshot["head"], _busy_of_ranks(snapshot)
    of = "" if head["num_steps"] is None else f" of {head['num_steps']:,}"
    loss = "–" if head["loss"] is None else f"{head['loss']:.4f}"
    rows = [("State", head["state"]), ("Step", f"{head['step']:,}{of}"), ("Loss", loss), *busy]
    if head["error"]:
        rows.append(("Error", head["error"]))
    body = "".join(
        f'<tr><th style="text-align:left">{shell.as_html(name)}</th>'
        f'<td style="text-align:left">{shell.as_html(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f"<table><caption>Run {html.escape(run.run_id)}</caption>{body}</table>"
        "<p>Install <code>anywidget</code> for a live view.</p>"
    )


def _busy_of_ranks(snapshot: Picture) -> list[tuple[str, str]]:
    """Return a row for each rank with its device and utilization."""
    rows = []
    for device in snapshot.get("devices", []):
        busy = device.get("utilization_percent")
        name = device.get("name") or device.get("kind") or "device"
        rows.append((f"Rank {device['rank']}", name if busy is None else f"{name}, {busy:.0f}% busy"))
    return rows
