"""Rankscope as an installed program: the package of the wheel, and its command `rankscope`.

In the wheel, this package contains the folders of the checkout (pyproject.toml). They import each other by
their names in the checkout, so `add_to_path` makes these names importable, only in processes of the program.
"""

from __future__ import annotations

import sys
from pathlib import Path


def add_to_path() -> Path:
    """Make app, ddp_gui and trainers importable; return the folder that contains them."""
    folder = Path(__file__).resolve().parent
    root = folder if (folder / "app.py").is_file() else folder.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return root
