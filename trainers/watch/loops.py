"""How many epochs a script is going to train, from the `for … in range(…)` around its training loop."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import FrameType
from typing import Any

MOST_FRAMES = 30
_RANGES = ("range", "trange")


def num_epochs(frame: FrameType | None, num_done: int = 0) -> int | None:
    """Return the length of the innermost range that encloses the line at which a frame stands.

    A range with a variable as its beginning continues after `num_done` epochs. If the frame's own function
    has no range, those of its callers are searched. The arguments of the range may be numbers, variables,
    their attributes and entries; they are looked up, nothing is called.
    """
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        for call in reversed(list(_enclosing_ranges(frame))):
            try:
                values = [_value(argument, frame) for argument in call.args]
                continues = len(call.args) > 1 and not isinstance(call.args[0], ast.Constant)
                return len(range(*values)) + (num_done if continues else 0)
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
                continue
        frame = frame.f_back
    return None


def _enclosing_ranges(frame: FrameType) -> Iterator[ast.Call]:
    """Yield the calls of range in the loops around a frame's line, outermost first."""
    path, line = frame.f_code.co_filename, frame.f_lineno
    if "site-packages" in path or path.startswith("<"):
        return
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return
    # Loops of the frame's own function only: one around its definition does not run it.
    first = frame.f_code.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and first <= node.lineno <= line <= (node.end_lineno or node.lineno):
            for part in ast.walk(node.iter):
                is_range = isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
                if is_range and part.func.id in _RANGES and not part.keywords:  # type: ignore[attr-defined]
                    yield part  # type: ignore[misc]


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a constant, a variable, an attribute, an entry, or a sum or difference of them."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals[node.id] if node.id in frame.f_locals else frame.f_globals[node.id]
    if isinstance(node, ast.Subscript):
        found = _value(node.value, frame)
        if type(found) is not dict:
            raise TypeError("only dicts are looked into")
        return found[_value(node.slice, frame)]
    if isinstance(node, ast.Attribute):
        # `vars`, because a property could run code of the script.
        return vars(_value(node.value, frame))[node.attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left, right = _value(node.left, frame), _value(node.right, frame)
        if not (isinstance(left, int) and isinstance(right, int)):
            raise TypeError("only whole numbers are added")
        return left + right if isinstance(node.op, ast.Add) else left - right
    raise ValueError(ast.dump(node)[:80])
