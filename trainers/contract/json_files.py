"""Reads JSON that anybody may have written: neither its size nor its depth is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainers.contract.plain_files import open_plain

MAX_JSON_BYTES = 64 * 2**20


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        OSError: when it cannot be read.
        ValueError: when it is not JSON, no plain file, far too large, or so deep that it cannot be held.
    """
    with open_plain(path) as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_JSON_BYTES // 2**20} MB")
    return parse_json(content)


def parse_json(content: bytes | str) -> Any:
    """Return the value some JSON stands for.

    Raises:
        ValueError: when it is not JSON, or so deep that it cannot be held.
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("values are nested too deep") from error
