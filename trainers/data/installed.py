"""Finds data that other packages carry, without importing them: their code is not ours to run."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path


def package_folder(name: str) -> Path:
    """Return an installed package's folder, or the folder where pip would put it.

    Nothing is imported: for a name without dots `find_spec` only looks.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(sysconfig.get_path("purelib")) / name
