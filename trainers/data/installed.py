"""Finds data files in installed packages without importing (and thus executing) the packages."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path


def package_folder(name: str) -> Path:
    """Return an installed package's folder, or the folder where pip would put it.

    Imports nothing: `find_spec` imports only parent packages, which a name without dots does not have.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(sysconfig.get_path("purelib")) / name
