"""Formulas over the fields of a configuration, written by plug-ins and evaluated by the page without torch.

A formula is a Python expression of numbers, texts, field names, `+ - * // %`, comparisons, `and`, `or`,
`not` and `a if b else c`. Beside the fields it knows `one` (1) and `all` (the ranks of the run).
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.contract.config.settings import Problem

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class FormulaError(ValueError):
    """A formula that cannot be evaluated; names it."""


def evaluate(formula: str, values: Mapping[str, Any]) -> Any:
    """Return what a formula gives for these values of the fields.

    Raises:
        FormulaError: when it is no such expression, names an unknown field, or divides by zero.
    """
    try:
        return _value(_parsed(formula), values)
    except (SyntaxError, LookupError, TypeError, ArithmeticError) as error:
        raise FormulaError(f"the formula {formula!r} cannot be evaluated: {error}") from error


@functools.cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return values[name]
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]):
            return _OPERATORS[type(kind)](_value(left, values), _value(right, values))
        case ast.BoolOp(ast.And(), parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(ast.Or(), parts):
            return any(_value(part, values) for part in parts)
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, values)
        case ast.IfExp(test, then, other):
            return _value(then if _value(test, values) else other, values)
    raise SyntaxError(f"{ast.unparse(node)} is not allowed in a formula")


@dataclass(frozen=True, kw_only=True)
class Check:
    """What must hold of a configuration.

    Attributes:
        holds: a formula that is true of the configurations that are allowed.
        field: the field that is named where it does not hold.
        allowed: what that field may be, in words; `{name}` stands for a field's value.
    """

    holds: str
    field: str
    allowed: str

    def problem(self, values: Mapping[str, Any]) -> Problem | None:
        """Return the problem with a configuration of these values, or None.

        Raises:
            FormulaError: when the check itself makes no sense.
        """
        return None if evaluate(self.holds, values) else self.said(values)

    def said(self, values: Mapping[str, Any]) -> Problem:
        """Return the problem as it is told of these values.

        Raises:
            FormulaError: when it names a field that there is not.
        """
        try:
            allowed = self.allowed.format_map(values)
            return Problem(field=self.field, value=values[self.field], allowed=allowed)
        except KeyError as error:
            raise FormulaError(f"the check {self.holds!r} names {error}, which is no field") from error
