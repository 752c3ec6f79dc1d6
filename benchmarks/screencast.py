"""Films a page and tells, from the pixels alone, when a chart had come to show more steps.

The same for every program: the picture is what the browser composed, the time is the browser's own for that
picture. A history of noise fills a band of the chart; when the newest step lies a tenth further on, the axis
grows and the band gets a tenth narrower. The number of columns the band fills says how much is shown.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page

# Lines are darker than grids; a column belongs to the band when this share of its height is line.
DARK = 215
BAND_SHARE = 0.10
NARROWER = 0.955


@dataclass
class Film:
    """The pictures of one page from `start` to `stop`, each with its unix time in seconds."""

    page: Page
    selector: str
    frames: list[tuple[float, bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Begin to film; a picture comes whenever the page has changed."""
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.on("Page.screencastFrame", self._take)
        self._session.send("Page.startScreencast", {"format": "jpeg", "quality": 80})

    def stop(self) -> None:
        """End the filming."""
        self._session.send("Page.stopScreencast")
        self._session.detach()

    def latencies_ms(self, happened_unix_s: list[float]) -> list[float | None]:
        """Return for each growth of the axis how long it took to be seen; None when it never was."""
        widths = [(unix_s, self._band_columns(frame)) for unix_s, frame in self.frames]
        latencies: list[float | None] = []
        for number, happened in enumerate(happened_unix_s):
            before = [width for unix_s, width in widths if unix_s < happened]
            until = happened_unix_s[number + 1] if number + 1 < len(happened_unix_s) else float("inf")
            seen = (
                unix_s
                for unix_s, width in widths
                if before and happened <= unix_s < until and width < NARROWER * before[-1]
            )
            first = next(seen, None)
            latencies.append(None if first is None else (first - happened) * 1000)
        return latencies

    def _take(self, event: dict[str, Any]) -> None:
        self.frames.append((event["metadata"]["timestamp"], base64.b64decode(event["data"])))
        self._session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    def _band_columns(self, frame: bytes) -> int:
        box = self._box()
        with Image.open(io.BytesIO(frame)) as picture:
            pixels = np.asarray(picture.convert("RGB").crop(box))
        is_line = pixels.min(axis=2) < DARK
        return int((is_line.mean(axis=0) > BAND_SHARE).sum())

    def _box(self) -> tuple[int, int, int, int]:
        if not hasattr(self, "_crop"):
            box = self.page.locator(self.selector).first.bounding_box()
            assert box is not None
            right, bottom = box["x"] + box["width"], box["y"] + box["height"]
            self._crop = (round(box["x"]), round(box["y"]), round(right), round(bottom))
        return self._crop
