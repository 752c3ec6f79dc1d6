"""Measure the dashboard and print JSON.

python -m benchmarks.dashboard viewers
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.dashboard import idle, opening, viewers
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
    whole = what.add_parser("opening", help="a finished run: until it shows, memory, zooming in")
    whole.add_argument("--steps", type=int, default=1_000_000)
    many = what.add_parser("viewers", help="thirty viewers of one run, and one who never reads")
    many.add_argument("--seconds", type=float, default=60.0)
    many.add_argument("--steps", type=int, default=100_000)
    quiet = what.add_parser("idle", help="the server at rest, beside an empty Gradio app")
    quiet.add_argument("--seconds", type=float, default=60.0)
    quiet.add_argument("--steps", type=int, default=1_000)
    return parser.parse_args()


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.what == "opening":
        return opening.measure(options.steps)
    if options.what == "idle":
        return idle.measure(options.seconds, options.steps)
    return viewers.measure(options.seconds, options.steps)


if __name__ == "__main__":
    main()
