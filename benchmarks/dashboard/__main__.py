"""Measure the dashboard and print JSON.

python -m benchmarks.dashboard viewers
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from benchmarks.dashboard import clicks, drawing, first_page, idle, opening, pixel, tabs, viewers
from benchmarks.machine import Conditions


def main() -> None:
    """Run the measurement that is named and print its figures."""
    options = _options()
    conditions = Conditions.note()
    figures = _measure(options)
    print(json.dumps({"measured": options.what, "machine": conditions.report(), **figures}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True)
    live = what.add_parser("pixel", help="event to pixel at several lengths of a run")
    live.add_argument("--steps", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    live.add_argument("--seconds", type=float, default=60.0)
    live.add_argument("--turns", type=int, default=2)
    whole = what.add_parser("opening", help="a finished run: until it shows, memory, zooming in")
    whole.add_argument("--steps", type=int, default=1_000_000)
    many = what.add_parser("viewers", help="thirty viewers of one run, and one who never reads")
    many.add_argument("--seconds", type=float, default=60.0)
    many.add_argument("--steps", type=int, default=100_000)
    quiet = what.add_parser("idle", help="the server at rest, beside an empty Gradio app")
    quiet.add_argument("--seconds", type=float, default=60.0)
    quiet.add_argument("--steps", type=int, default=1_000)
    many_tabs = what.add_parser("tabs", help="ten tabs at once")
    many_tabs.add_argument("--tabs", type=int, default=10)
    many_tabs.add_argument("--steps", type=int, default=100_000)
    drawn = what.add_parser("drawing", help="what a browser and the server need to show a live run")
    drawn.add_argument("--seconds", type=float, default=30.0)
    drawn.add_argument("--rates", type=float, nargs="+", default=[10.0, 300.0])
    first = what.add_parser("first-page", help="until the first page can be used")
    first.add_argument("--times", type=int, default=5)
    clicked = what.add_parser("clicks", help="until each button gives feedback")
    clicked.add_argument("--times", type=int, default=3)
    return parser.parse_args()


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    measurements: dict[str, Callable[[], dict[str, Any]]] = {
        "pixel": lambda: pixel.measure(options.steps, options.seconds, options.turns),
        "opening": lambda: opening.measure(options.steps),
        "viewers": lambda: viewers.measure(options.seconds, options.steps),
        "idle": lambda: idle.measure(options.seconds, options.steps),
        "tabs": lambda: tabs.measure(options.tabs, options.steps),
        "drawing": lambda: drawing.measure(options.seconds, options.rates),
        "first-page": lambda: first_page.measure(options.times),
        "clicks": lambda: clicks.measure(options.times),
    }
    return measurements[options.what]()


if __name__ == "__main__":
    main()
