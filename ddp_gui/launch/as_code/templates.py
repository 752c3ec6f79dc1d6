"""Renders the templates of scripts in assets/code: Python texts with statements and expressions of Jinja."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import jinja2

from trainers.files.plain_files import ASSETS

WIDTH = 110
_OPENING = ("def ", "class ", "@")


class NotAsCodeError(ValueError):
    """The configuration cannot be written as one script; the message is the reason."""


def render(name: str, **values: Any) -> str:
    """Return a rendered template. A variable of the template without a value is an error."""
    return _environment().get_template(f"{name}.jinja").render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    # Delimiters that do not occur in the scripts. No escaping, because the output is Python; `literal` quotes
    # texts that users can choose.
    environment = jinja2.Environment(  # nosec B701
        loader=jinja2.FileSystemLoader(ASSETS / "code"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701
    )
    environment.globals["call"] = call
    environment.filters["literal"] = literal
    return environment


def literal(text: str) -> str:
    """Return a text as a Python literal; undecodable bytes of a path are escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", quoted)


def call(function: str, arguments: Sequence[str]) -> str:
    """Return a call on one line, or with one argument on each line if it would be too long."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{function}(", *(f"    {argument}," for argument in arguments), ")"])


def spaced(text: str) -> str:
    """Return a text with two blank lines around each definition at the top level, and at most one elsewhere.

    A comment directly above a definition belongs to it.
    """
    stripped = [line.rstrip() for line in text.splitlines()]
    nonempty = [row for row, line in enumerate(stripped) if line]
    lines: list[str] = []
    is_inside = False
    for number, row in enumerate(nonempty):
        line = stripped[row]
        following = stripped[nonempty[number + 1]] if number + 1 < len(nonempty) else ""
        is_top = line[0] not in " )]}"
        opens = line.startswith(_OPENING) or (line.startswith("# ") and following.startswith(_OPENING))
        is_attached = bool(lines) and lines[-1].startswith(("@", "# "))
        if lines and is_top and not is_attached and (opens or is_inside):
            lines += ["", ""]
        elif lines and not is_attached and not stripped[row - 1]:
            lines.append("")
        is_inside = opens if is_top else is_inside
        lines.append(line)
    return "\n".join(lines) + "\n"
