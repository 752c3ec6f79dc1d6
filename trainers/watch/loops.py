"""Derives the number of epochs and steps of a script from the source of its training loop."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

MAX_FRAMES = 30
_RANGES = ("range", "trange")
_Block = ast.For | ast.While | ast.If
_OWN_FILES = f"{Path(__file__).parent}{os.sep}"
# Files whose frames call a script. The frames above belong to the parent process if the process was forked.
_START_FILES = tuple(f"{_OWN_FILES}{name}" for name in ("__main__.py", "session.py"))
_PACKAGES = tuple(f"{kind}-packages{os.sep}" for kind in ("site", "dist"))
_TORCH = tuple(f"{folder}torch{os.sep}" for folder in _PACKAGES)
_NOT_FOUND = (LookupError, TypeError, ValueError, AttributeError, OverflowError, NotImplementedError)
# Matches a condition that is true in every k-th iteration; with `or`, also in the last iteration.
_EVERY_KTH = re.compile(r"(?:not )?(\w+|\(\w+ \+ 1\)) % ([\w.]+)(?: == ([\w. -]+?))?( or .* == .*)?")


def num_epochs(frame: FrameType | None, num_done: int = 0) -> int | None:
    """Return the length of the innermost range loop around a frame's current line.

    A range that starts at a variable is assumed to continue after `num_done` epochs. If the frame's function
    has no range, its callers are searched up to a `while`, because `while True: for batch in loader` has no
    end. The arguments of the range may be numbers, variables, attributes and entries, which are read without
    calling code.
    """
    for loop, loop_frame in _enclosing_blocks(frame):
        if isinstance(loop, ast.While):
            return None
        if isinstance(loop, ast.For) and (length := _loop_length(loop, loop_frame, num_done)) is not None:
            return length
    return None


def num_steps(frame: FrameType | None) -> int | None:
    """Return how often a frame's line runs, in loops over a range or a data loader, or up to a number of
    steps.

    The number of steps comes from `while step < 1000` or `if step == 1000: break`. None if the line is in
    another kind of loop, if a library calls it, or if it depends on a condition other than "every k-th
    iteration".
    """
    number: int | None = 1
    limit, counter, num_loops, conditions = None, "", 0, list[tuple[ast.expr, bool]]()
    for block, block_frame in _enclosing_blocks(frame):
        if isinstance(block, ast.If):
            is_else = block_frame.f_lineno > (block.body[-1].end_lineno or 0)
            conditions.append((block.test, is_else))
            continue
        earlier_statements = (node for node in block.body if (node.end_lineno or 0) < block_frame.f_lineno)
        guards = (node for node in earlier_statements if isinstance(node, ast.If))
        conditions += [(guard.test, True) for guard in guards if isinstance(guard.body[-1], ast.Continue)]
        lengths = [_loop_length(block, block_frame, with_loaders=True), None]
        if limit is not None and _assigns(
            block, counter
        ):  # the counter restarts in each iteration of this loop
            number, limit = _minimum(number, limit), None
        if limit is None:
            counter, lengths[1] = _until_break(block, block_frame)
        for condition in conditions:
            lengths = [size and _num_true(*condition, block, block_frame, size) for size in lengths]
        length, steps_to_break = (size and number and size * number for size in lengths)
        number, limit, conditions, num_loops = length, steps_to_break or limit, [], num_loops + 1
    return _minimum(number, limit) if num_loops else None


def _minimum(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _assigns(loop: ast.For | ast.While, variable: str) -> bool:
    """True if a loop assigns to a variable, also as the variable of an inner loop."""
    targets: list[ast.AST] = []
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.For):
            targets += ast.walk(node.target)
    return variable in map(ast.unparse, targets)


def _num_true(
    test: ast.expr, is_else: bool, loop: ast.For | ast.While, frame: FrameType, length: int
) -> int | None:
    """Return how often a condition like `(i + 1) % k == 0` is true in a loop; None for others."""
    for statement in loop.body:  # `is_last = (i + 1) % k == 0`
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == ast.unparse(test):
            test = statement.value
    text = ast.unparse(test).removesuffix(" != 0")
    if (match := _EVERY_KTH.fullmatch(text)) is None:
        return None
    counter, k, remainder, or_last = match.groups()
    # `i % k` without a comparison is true in all other iterations.
    if is_else == (remainder is not None or text.startswith("not ")):
        return None
    counts_from_0 = isinstance(loop, ast.For) and "," not in ast.unparse(loop.iter)
    is_loop_variable = isinstance(loop, ast.For) and counter in map(ast.unparse, ast.walk(loop.target))
    is_true_at_first = is_loop_variable and counts_from_0 and remainder in (None, "0")
    try:
        period = int(_value(ast.parse(k, mode="eval").body, frame))
        return (length + (period - 1 if or_last or is_true_at_first else 0)) // period
    except (*_NOT_FOUND, ZeroDivisionError):
        return None


def _enclosing_blocks(frame: FrameType | None) -> Iterator[tuple[_Block, FrameType]]:
    """Yield the loops and conditions around the line of a frame and of its callers, each with its frame. The
    innermost comes first. The search ends at a library other than torch, which may call the script's
    functions repeatedly.
    """
    for _ in range(MAX_FRAMES):
        if frame is None or _is_library(frame.f_code.co_filename):
            return
        for block in reversed(list(_blocks_around(frame))):
            yield block, frame
        frame = frame.f_back


def _is_library(path: str) -> bool:
    if path.startswith(_OWN_FILES):
        return path in _START_FILES
    return _has_any(path, _PACKAGES) and not _has_any(path, _TORCH)


def _has_any(path: str, folders: tuple[str, ...]) -> bool:
    return any(folder in path for folder in folders)


def _blocks_around(frame: FrameType) -> Iterator[_Block]:
    """Yield the loops and conditions whose body contains a frame's line, outermost first."""
    path, line = frame.f_code.co_filename, frame.f_lineno
    if path.startswith(("<", _OWN_FILES)) or _has_any(path, _PACKAGES):
        return
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return
    # Only blocks of the frame's own function: a block around the function's definition does not repeat its
    # calls.
    first = frame.f_code.co_firstlineno
    for node in ast.walk(tree):
        is_around = isinstance(node, _Block) and first <= node.lineno
        if is_around and node.body[0].lineno <= line <= (node.end_lineno or 0):  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def _loop_length(
    loop: ast.For | ast.While, frame: FrameType, num_done: int = 0, *, with_loaders: bool = False
) -> int | None:
    """Return how often a loop over a range or a loader, or up to a number, runs; None if unknown."""
    try:
        if isinstance(loop, ast.While):
            match loop.test:
                case ast.Compare(left=now, ops=[ast.Lt() | ast.LtE() as sign], comparators=[end]):
                    return _num_until(
                        loop, now, end, loop.lineno, frame, is_included=isinstance(sign, ast.LtE)
                    )
            return None
        for call in ast.walk(loop.iter):
            is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            if is_range and call.func.id in _RANGES:  # type: ignore[attr-defined]
                values = [_value(argument, frame) for argument in call.args]  # type: ignore[attr-defined]
                continues = len(values) > 1 and not isinstance(call.args[0], ast.Constant)  # type: ignore[attr-defined]
                return len(range(*values)) + (num_done if continues else 0)
        expression = loop.iter  # a variable, perhaps of a progress bar
        while isinstance(expression, ast.Call) and with_loaders:  # enumerate(loader), tqdm(enumerate(loader))
            (expression, *_) = expression.args
        iterable = _value(expression, frame)
        iterable = getattr(iterable, "__dict__", {}).get("iterable", iterable)
        if (
            isinstance(iterable, list | tuple)
            and iterable
            and all(hasattr(item, "param_groups") for item in iterable)
        ):
            return 1  # a loop over optimizers: the steps of the first one count
        is_loader = with_loaders and any(kind.__name__ == "DataLoader" for kind in type(iterable).__mro__)
        return len(iterable) if type(iterable) is range or is_loader else None
    except _NOT_FOUND:
        return None


def _until_break(loop: ast.For | ast.While, frame: FrameType) -> tuple[str, int | None]:
    """Return the counter in `if step > 1000: break`, and how often the frame's line runs before."""
    for statement in loop.body:
        match statement:
            case ast.If(
                test=ast.Compare(left=now, ops=[ast.Gt() | ast.GtE() | ast.Eq() as sign], comparators=[end]),
                body=[*_, ast.Break() | ast.Return()],
            ):
                is_included = isinstance(sign, ast.Gt)
                with contextlib.suppress(*_NOT_FOUND):
                    number = _num_until(loop, now, end, statement.lineno, frame, is_included=is_included)
                    return ast.unparse(now), number
    return "", None


def _num_until(
    loop: ast.For | ast.While,
    counter: ast.expr,
    end: ast.expr,
    compare_line: int,
    frame: FrameType,
    *,
    is_included: bool,
) -> int | None:
    """Return how often a frame's line runs until a counter, which `compare_line` compares, reaches its limit.
    None if the loop does not add 1 to the counter.
    """
    increment_line, line = (
        next((statement.lineno for statement in loop.body if _adds_one(statement, counter)), None),
        frame.f_lineno,
    )
    if isinstance(loop, ast.For) and ast.unparse(counter) in map(ast.unparse, ast.walk(loop.target)):
        increment_line = loop.lineno  # `for i, batch in enumerate(loader)`
    if increment_line is None:
        return None
    remaining: int = _value(ast.BinOp(left=end, op=ast.Sub(), right=counter), frame)
    return (
        remaining
        + is_included
        + (
            compare_line < increment_line < line
            if compare_line < line
            else not line < increment_line < compare_line
        )
    )


def _adds_one(statement: ast.stmt, variable: ast.expr) -> bool:
    """True for `variable += 1`. A counter of samples or tokens adds more per iteration."""
    match statement:
        case ast.AugAssign(target=target, op=ast.Add(), value=ast.Constant(value=1)):
            return ast.unparse(target) == ast.unparse(variable)
    return False


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a constant, a variable, an attribute, an entry, or a sum or difference of them."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals[node.id] if node.id in frame.f_locals else frame.f_globals[node.id]
    if isinstance(node, ast.Subscript):
        container = _value(node.value, frame)
        if type(container) is not dict:
            raise TypeError("only entries of dicts are read")
        return container[_value(node.slice, frame)]
    if isinstance(node, ast.Attribute):
        # `vars`, because a property could run code of the script.
        return vars(_value(node.value, frame))[node.attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left_value, right_value = _value(node.left, frame), _value(node.right, frame)
        if not (isinstance(left_value, int) and isinstance(right_value, int)):
            raise TypeError("only whole numbers are added")
        return left_value + right_value if isinstance(node.op, ast.Add) else left_value - right_value
    raise ValueError(ast.dump(node)[:80])
