"""Builds HTML from values: every text is escaped, and what would act unseen in it is shown."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from ddp_gui.http.visible import visible

_VOID = frozenset({"br", "hr", "meta"})
_ADDRESSES = ("https://", "http://")
_INLINES = {"b": "strong", "i": "em", "code": "code"}

Child = str | Iterable["Child"] | None


class Html(str):
    """Text that is HTML already: made by this module only."""

    __slots__ = ()


def text(words: object) -> Html:
    """Return a value as text."""
    return Html(html.escape(visible(str(words))))


def tag(element: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element; `class_` is written `class`, `data_x` is written `data-x`.

    An attribute that is None or False is left out, as is a child that is None.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Html(f"<{element}{written}>")
    return Html(f"<{element}{written}>{joined(children)}</{element}>")


def joined(children: Child) -> Html:
    """Return children one after the other."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return text(children)
    return Html("".join(map(joined, children)))


def name_of(words: object) -> Html:
    """Return a name that somebody gave, whatever its direction of writing."""
    return tag("bdi", str(words))


def inlines(tree: Sequence[Any]) -> Html:
    """Return a paragraph's inside of a lesson, as `ddp_gui.learn.markdown` gives it."""
    return joined(_inline(part) for part in tree)


def _inline(part: Any) -> Html:
    if isinstance(part, str):
        return text(part)
    kind, *inside = part
    if kind == "link" and str(inside[0]).startswith(_ADDRESSES):
        return tag("a", inlines(inside[1]), href=inside[0], rel="noreferrer")
    if kind == "code":
        return tag("code", inside[0])
    if kind in _INLINES:
        return tag(_INLINES[kind], inlines(inside[0]))
    return inlines(inside[-1])  # a term: the glossary is not in the file


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'
