"""Conditions on what runs measured, such as `speed_up(1, 0) < 1.35`: parsed when a lesson is read.

A condition compares numbers and quantities (`measures.QUANTITIES`) with `<`, `<=`, `>`, `>=`, `==`, `!=`,
joined by `and`, `or` and `not`; numbers can be added, subtracted, multiplied and divided. A run is named by
its number in the lesson, from 0, or, in a question with an attempt, by the name of one of its choices.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from ddp_gui.learn.measures import QUANTITIES, RunNumbers, UnmeasuredError

MAX_LENGTH = 400
# A run in a condition: its number in the lesson, or a choice of the attempt.
RunName = int | str
Runs = Mapping[RunName, RunNumbers]

_COMPARED: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_COMPUTED: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A quantity of one or two runs in a condition, and the rank that it is of."""

    quantity: str
    runs: tuple[RunName, ...]
    rank: int | None = None

    def value(self, runs: Runs) -> float:
        """Return the measured number.

        Raises:
            UnmeasuredError: naming the run and the quantity.
        """
        missing = [name for name in self.runs if name not in runs]
        if missing:
            words = f"“{missing[0]}” was not run" if isinstance(missing[0], str) else "a run is missing"
            raise UnmeasuredError(f"{words}.")
        about, of = QUANTITIES[self.quantity], [runs[name] for name in self.runs]
        found = about.read(*of) if self.rank is None else about.read(*of, self.rank)
        if not isinstance(found, int | float) or not math.isfinite(found):
            raise UnmeasuredError(f"The {about.words} of “{of[0].name}” was not measured.")
        return float(found)


def check(text: str, num_runs: int, attempts: Collection[str] = ()) -> None:
    """Check a condition.

    Raises:
        ValueError: naming what is wrong with it.
    """
    tree = _parsed(text)
    if not isinstance(tree, ast.Compare | ast.BoolOp) and not _is_not(tree):
        raise ValueError(f"{text!r} compares nothing")
    _check(tree, is_condition=True)
    for each in _measurements(tree):
        for name in each.runs:
            if isinstance(name, str) and name not in attempts:
                allowed = ", ".join(attempts) or "none: only a question with an attempt has them"
                raise ValueError(f"{name!r} is no choice of the attempt; allowed is: {allowed}")
            if isinstance(name, int) and not 0 <= name < num_runs:
                raise ValueError(f"there is no run {name}; allowed is: 0 to {num_runs - 1}")
    if not any(True for _ in _measurements(tree)):
        raise ValueError(f"{text!r} names no quantity; there are: {', '.join(QUANTITIES)}")


def measurements(text: str) -> list[Measurement]:
    """Return the measurements that a checked condition compares, each once."""
    return list(dict.fromkeys(_measurements(_parsed(text))))


def holds(text: str, runs: Runs) -> bool:
    """Return True if the runs meet a checked condition.

    Raises:
        UnmeasuredError: when they do not have what it compares.
    """
    return bool(_value(_parsed(text), runs))


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has more than {MAX_LENGTH} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no condition") from error


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _check(node: ast.expr, *, is_condition: bool) -> None:
    """Refuse everything but conditions of numbers and quantities."""
    if is_condition and isinstance(node, ast.BoolOp):
        for each in node.values:
            _check(each, is_condition=True)
    elif is_condition and _is_not(node) and isinstance(node, ast.UnaryOp):
        _check(node.operand, is_condition=True)
    elif is_condition and isinstance(node, ast.Compare) and all(type(op) in _COMPARED for op in node.ops):
        for each in (node.left, *node.comparators):
            _check(each, is_condition=False)
    elif not is_condition and isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        _check(node.left, is_condition=False)
        _check(node.right, is_condition=False)
    elif not is_condition and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, is_condition=False)
    elif not is_condition and isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return
    elif not is_condition and isinstance(node, ast.Call):
        _measurement(node)
    else:
        what = "a comparison" if is_condition else "a number or a quantity"
        raise ValueError(f"{ast.unparse(node)!r} is not {what}")


def _measurements(tree: ast.expr) -> Iterator[Measurement]:
    return (_measurement(node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _measurement(call: ast.Call) -> Measurement:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    about = QUANTITIES.get(name)
    if about is None:
        raise ValueError(f"{ast.unparse(call.func)!r} is no quantity; there are: {', '.join(QUANTITIES)}")
    values = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
    *_, last = values or [None]
    runs = [value for value in values[: about.num_runs] if type(value) in (int, str)]
    has_rank = type(last) is int and last >= 0 if about.has_rank else True
    if call.keywords or len(values) != about.num_arguments or len(runs) != about.num_runs or not has_rank:
        wanted = ["a run", "a run to compare with"][: about.num_runs] + ["a rank"] * about.has_rank
        raise ValueError(f"{ast.unparse(call)!r}: {name} has {', '.join(wanted)}")
    rank = last if about.has_rank and isinstance(last, int) else None
    return Measurement(
        quantity=name, runs=tuple(run for run in runs if isinstance(run, int | str)), rank=rank
    )


def _value(node: ast.expr, runs: Runs) -> float:
    """Return the value of a checked node; a condition is 1.0 where it holds."""
    if isinstance(node, ast.BoolOp):
        combined = all if isinstance(node.op, ast.And) else any
        return float(combined([_value(each, runs) for each in node.values]))
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, runs)
        return float(not value) if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.Compare):
        sides = [_value(each, runs) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
        return float(all(_COMPARED[type(op)](left, right) for op, left, right in pairs))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, runs), _value(node.right, runs)
        if isinstance(node.op, ast.Div) and right == 0:
            raise UnmeasuredError("A number to divide by is 0.")
        return _COMPUTED[type(node.op)](left, right)
    if isinstance(node, ast.Call):
        return _measurement(node).value(runs)
    assert isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value)
