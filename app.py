"""Open the page: parse options, hand over to ddp_gui.server."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_gui.catalogue import CatalogueSource


def main() -> None:
    """Parse the options and serve the page."""
    options = parse_options(sys.argv[1:])
    # Nothing here calls home, and nothing is fetched from outside.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    from ddp_gui.catalogue import CatalogueError, CatalogueSource, default_cache_file

    catalogue = CatalogueSource(default_cache_file())
    # Asking what there is and importing Gradio both take seconds: side by side.
    asking = threading.Thread(target=_ask_ahead, args=(catalogue,), daemon=True)
    asking.start()
    from ddp_gui.server import Options, serve

    asking.join()
    try:
        serve(
            Options(
                host=options.host,
                port=options.port,
                runs_dir=options.runs_dir.resolve(),
                open_browser=not options.no_browser,
            ),
            catalogue,
        )
    except (ValueError, CatalogueError) as error:
        sys.exit(f"The page cannot be served: {error}")


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train networks on several GPUs from a web page.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=7860, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), help="folder of the runs (default: %(default)s)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser window")
    return parser.parse_args(arguments)


def _ask_ahead(catalogue: CatalogueSource) -> None:
    from ddp_gui.catalogue import CatalogueError

    try:
        catalogue.get()
    except CatalogueError as error:
        print(f"{error}", file=sys.stderr)


if __name__ == "__main__":
    main()
