"""What a rank that torchrun has forked does first: it becomes what one that was started anew would be.

forked_rank.py MODULE ARGUMENTS ...
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from trainers import worker


def main() -> None:
    """Be a rank, by the `main` of the module named."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # torchrun's own handlers are none of a rank's business
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = sys.argv[1:]
    worker.end(importlib.import_module(sys.argv[0]).main())


if __name__ == "__main__":
    main()
