"""Finds data files in installed packages without importing (and thus executing) the packages."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path


def package_folder(name: str) -> Path:
    """Return an installed package's folder, or the folder where pip would put it.

    Nothing is imported: `find_spec` imports parent packages only, and a name without dots has none.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(sysconfig.get_path("purelib")) / name
