"""Lesson text as a tree of plain values, which the page builds from elements: text never becomes HTML.

A block is `["p", inlines]`, `["h3", inlines]`, `["pre", text]`, `["quote", blocks]`, `["ul", items]` or
`["ol", items]`, an item being a list of blocks. An inline is a text, `["b" | "i", inlines]`,
`["code", text]`, `["link", address, inlines]` or `["term", name, inlines]`, which the glossary explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

Tree = list[Any]

TERM = "term:"
_ADDRESSES = ("https://", "http://")
_WRAPPERS = {"strong": "b", "em": "i"}


class MarkdownError(ValueError):
    """Text that a lesson may not have.

    Attributes:
        line: where it is, from 1.
    """

    def __init__(self, words: str, line: int) -> None:
        super().__init__(words)
        self.line = line


def blocks(text: str, is_term: Callable[[str], bool]) -> Tree:
    """Return the blocks of a text.

    Args:
        is_term: whether the glossary has a term.

    Raises:
        MarkdownError: naming what is not allowed, and its line.
    """
    return _Reader(is_term).blocks(SyntaxTreeNode(_parser().parse(text)).children)


def inlines(text: str, is_term: Callable[[str], bool]) -> Tree:
    """Return the inlines of one paragraph.

    Raises:
        MarkdownError: where it is more than one, or has what is not allowed.
    """
    found = blocks(text, is_term)
    if len(found) != 1 or found[0][0] != "p":
        raise MarkdownError(f"{text!r} must be one paragraph", 1)
    inside: Tree = found[0][1]
    return inside


def _parser() -> MarkdownIt:
    # What is refused is found first: HTML, and links that its own rules would leave as text.
    made = MarkdownIt("commonmark", {"html": True})
    made.validateLink = lambda url: True  # type: ignore[method-assign]  # noqa: ARG005
    return made


class _Reader:
    def __init__(self, is_term: Callable[[str], bool]) -> None:
        self._is_term = is_term
        self._line = 1

    def blocks(self, nodes: Sequence[SyntaxTreeNode]) -> Tree:
        return [self._block(node) for node in nodes]

    def _block(self, node: SyntaxTreeNode) -> Tree:
        if node.map is not None:
            self._line = node.map[0] + 1
        if node.type == "paragraph":
            return ["p", self._inside(node)]
        if node.type == "heading" and node.tag == "h3":
            return ["h3", self._inside(node)]
        if node.type in ("fence", "code_block"):
            return ["pre", node.content.rstrip("\n")]
        if node.type == "blockquote":
            return ["quote", self.blocks(node.children)]
        if node.type in ("bullet_list", "ordered_list"):
            items = [self.blocks(item.children) for item in node.children]
            return ["ul" if node.type == "bullet_list" else "ol", items]
        raise self._refused(node)

    def _inside(self, node: SyntaxTreeNode) -> Tree:
        return self._inlines([child for inline in node.children for child in inline.children])

    def _inlines(self, nodes: Sequence[SyntaxTreeNode]) -> Tree:
        return [made for node in nodes if (made := self._inline(node)) != ""]

    def _inline(self, node: SyntaxTreeNode) -> Any:
        if node.type == "text":
            if "](" in node.content:
                words = "a link is written wrongly: its address has no spaces (write _ in the name of a term)"
                raise MarkdownError(words, self._line)
            return node.content
        if node.type in ("softbreak", "hardbreak"):
            return " "
        if node.type == "code_inline":
            return ["code", node.content]
        if node.type in _WRAPPERS:
            return [_WRAPPERS[node.type], self._inlines(node.children)]
        if node.type == "link":
            return self._link(node)
        raise self._refused(node)

    def _link(self, node: SyntaxTreeNode) -> Tree:
        inside = self._inlines(node.children)
        address = str(node.attrs.get("href", ""))
        if address.startswith(TERM):
            name = address.removeprefix(TERM).replace("_", " ")
            if not self._is_term(name):
                raise MarkdownError(f"the glossary has no term {name!r}", self._line)
            return ["term", name, inside]
        if not address.startswith(_ADDRESSES):
            allowed = "an address with https:// or http://, or term: and a term of the glossary"
            raise MarkdownError(f"a link goes to {address!r}, but allowed is: {allowed}", self._line)
        return ["link", address, inside]

    def _refused(self, node: SyntaxTreeNode) -> MarkdownError:
        allowed = "paragraphs, headings with ###, lists, quotes, code, emphasis, and links"
        what = node.type.replace("_", " ")
        return MarkdownError(f"there is a part of the kind {what!r}, but allowed are: {allowed}", self._line)
