"""The checker: turns sqlglot's tree into `Typed` nodes, bottom up.

Whatever this module does not name is outside the subset of SQL. All faults of an expression are collected: a node
with a faulty child is not checked itself.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from sqlglot import exp

from millpond.errors import OptionError
from millpond.features.derivations import containers, maths, operators, texts, times
from millpond.features.derivations.casts import cast
from millpond.features.derivations.functions import UNLIMITED, Function
from millpond.features.derivations.grammar import fragment, place
from millpond.features.derivations.typed import Code, Faults, Typed, literal, text_literal
from millpond.features.derivations.types import BOOLEAN, DOUBLE, INT, LONG, STRING, VOID, decimal_of, parse_spark_type
from millpond.features.types import DECIMAL_DIGITS, DataType
from millpond.suggestions import did_you_mean, hint

FAMILIES: Mapping[str, Sequence[Function]] = {
    "Nulls, arrays and maps": containers.FUNCTIONS,
    "Numbers": maths.FUNCTIONS,
    "Strings": texts.FUNCTIONS,
    "Dates and times": times.FUNCTIONS,
}
FUNCTIONS: Mapping[str, Function] = {
    name: function for family in FAMILIES.values() for function in family for name in function.names
}

_COMPARISONS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_ARITHMETIC: dict[type, str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_PREDICATES = (
    *_COMPARISONS,
    exp.NullSafeEQ,
    exp.NullSafeNEQ,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Like,
    exp.Escape,
    exp.Not,
)
_WHOLE = re.compile(r"[0-9]+")
_EXACT = re.compile(r"[0-9]*\.[0-9]*")
_SCIENTIFIC = re.compile(r"[0-9]*\.?[0-9]*[eE][+-]?[0-9]+")


def check(tree: exp.Expression, columns: Mapping[str, Typed]) -> Typed:
    """Return the typed form of a parsed expression over `columns`.

    Raises:
        Faults: everything that is wrong with the expression.
    """
    checker = _Checker(columns)
    try:
        typed = checker.typed(tree)
    except RecursionError:
        raise Faults(["too deeply nested"]) from None
    if typed is None or checker.faults:
        raise Faults(checker.faults)
    if typed.type == VOID:
        raise Faults(["it is always null; write CAST(NULL AS …) if that is meant"])
    return typed


class _Checker:
    """Checks one expression; `faults` collects what is wrong."""

    def __init__(self, columns: Mapping[str, Typed]) -> None:
        self.faults: list[str] = []
        self._columns = columns

    def typed(self, node: exp.Expression) -> Typed | None:
        """Return `node` with its type, or None if it or a part of it is faulty."""
        if isinstance(node, exp.Paren):
            return self.typed(node.this)
        before = len(self.faults)
        try:
            typed = self._node(node)
        except Faults as faults:
            self.faults += [f"{place(node)}: {fault}" for fault in faults.found]
            return None
        return None if len(self.faults) > before else _located(typed, fragment(node))

    def _all(self, nodes: Sequence[exp.Expression]) -> list[Typed]:
        """Return the typed parts of a node; raise after all are checked if one is faulty."""
        found = [self.typed(node) for node in nodes]
        typed = [it for it in found if it is not None]
        if len(typed) < len(found):
            raise Faults
        return typed

    def _node(self, node: exp.Expression) -> Typed:
        kind: type = type(node)
        if kind in _COMPARISONS or kind in {exp.NullSafeEQ, exp.NullSafeNEQ}:
            return self._comparison(node)
        if kind in _ARITHMETIC:
            left, right = self._all([node.this, node.expression])
            return operators.arithmetic(_ARITHMETIC[kind], left, right)
        rule = _NODES.get(kind)
        if rule is None:
            raise Faults([f"{_sql_name(node)} is outside the subset of SQL that derivations are written in"])
        return rule(self, node)

    def _comparison(self, node: exp.Expression) -> Typed:
        if isinstance(node.this, _PREDICATES) or isinstance(node.expression, _PREDICATES):
            raise Faults(["put parentheses around a condition that is compared"])
        left, right = self._all([node.this, node.expression])
        if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
            return operators.null_safe_equal(left, right, negate=isinstance(node, exp.NullSafeNEQ))
        return operators.comparison(_COMPARISONS[type(node)], left, right)

    def column(self, node: exp.Expression) -> Typed:
        """Type a column's name."""
        if node.args.get("table") or not isinstance(node.this, exp.Identifier):
            raise Faults(["a column is one name, without a table; write names with dots in `backticks`"])
        if node.name not in self._columns:
            raise Faults([f"there is no column {node.name!r}; {hint(node.name, self._columns)}"])
        return self._columns[node.name]

    def literal(self, node: exp.Expression) -> Typed:
        """Type a number or a text."""
        if node.args["is_string"]:
            return literal(node.this, STRING, text_literal(node.this))
        return _number(node.this, "")

    def negative(self, node: exp.Expression) -> Typed:
        """Type ``-x``; if x is a number, as a negative literal."""
        if isinstance(node.this, exp.Literal) and not node.this.args["is_string"]:
            return _number(node.this.this, "-")
        return operators.negative(*self._all([node.this]))

    def call(self, node: exp.Expression) -> Typed:
        """Type a call of a function."""
        return self._called(str(node.this), node.expressions)

    def _called(self, written: str, nodes: Sequence[exp.Expression]) -> Typed:
        name = written.lower()
        function = FUNCTIONS.get(name)
        if function is None:
            mend = did_you_mean(name, FUNCTIONS)
            if name in _AGGREGATES:
                mend = ": derivations work on one row; aggregate in a GroupBy"
            raise Faults([f"the function {name} is outside the subset of SQL that derivations are written in{mend}"])
        if not function.least <= len(nodes) <= function.most:
            most = "any number" if function.most == UNLIMITED else str(function.most)
            count = most if function.least == function.most else f"{function.least} to {most}"
            raise Faults([f"{function.signature} takes {count} argument(s), got {len(nodes)}"])
        return function.build(self._all(nodes))

    def if_(self, node: exp.Expression) -> Typed:
        """Type ``if(condition, x, y)``."""
        parts = [node.this, node.args.get("true"), node.args.get("false")]
        return self._called("if", [part for part in parts if part is not None])

    def case(self, node: exp.Expression) -> Typed:
        """Type ``CASE``, with or without a subject."""
        conditions = [branch.this for branch in node.args["ifs"]]
        outcomes = [branch.args["true"] for branch in node.args["ifs"]]
        others = [part for part in (node.args.get("this"), node.args.get("default")) if part is not None]
        typed = self._all([*conditions, *outcomes, *others])
        count = len(conditions)
        branches = list(zip(typed[:count], typed[count : 2 * count], strict=True))
        otherwise = typed[-1] if node.args.get("default") is not None else None
        if node.args.get("this") is not None:
            return operators.case_of(typed[2 * count], branches, otherwise)
        return operators.case(branches, otherwise)

    def cast(self, node: exp.Expression) -> Typed:
        """Type ``CAST`` and ``TRY_CAST``, and literals with a type."""
        if node.args.get("format") or node.args.get("action") or node.args.get("default"):
            raise Faults(["CAST takes a type and nothing else"])
        to = _type_of(node.args["to"])
        (value,) = self._all([node.this])
        if value.literal and value.value is not None and value.type == INT and to == LONG:  # 1L stays a literal
            return literal(value.value, LONG, f"CAST({value.value} AS BIGINT)")
        return cast(value, to)

    def is_(self, node: exp.Expression) -> Typed:
        """Type ``IS NULL``, ``IS TRUE``, ``IS FALSE``."""
        _no_bare_predicate(node.this)
        (value,) = self._all([node.this])
        if isinstance(node.expression, exp.Null):
            return operators.is_null(value)
        if isinstance(node.expression, exp.Boolean):
            return operators.is_boolean(value, bool(node.expression.this))
        raise Faults(["IS takes NULL, TRUE or FALSE"])

    def in_(self, node: exp.Expression) -> Typed:
        """Type ``IN`` with a list of values."""
        _no_bare_predicate(node.this)
        if not node.expressions or any(node.args.get(part) for part in ("query", "unnest", "field")):
            raise Faults(["IN takes a list of values"])
        value, *choices = self._all([node.this, *node.expressions])
        return operators.is_in(value, choices)

    def between(self, node: exp.Expression) -> Typed:
        """Type ``BETWEEN``."""
        _no_bare_predicate(node.this)
        if node.args.get("symmetric"):
            raise Faults(["BETWEEN SYMMETRIC is outside the subset of SQL that derivations are written in"])
        return operators.between(*self._all([node.this, node.args["low"], node.args["high"]]))

    def like(self, node: exp.Expression) -> Typed:
        """Type ``LIKE``, ``NOT LIKE``, with or without ``ESCAPE``."""
        escape = "\\"
        if isinstance(node, exp.Escape):
            escape = str(node.expression.this)
            node = node.this
            if not isinstance(node, exp.Like) or len(escape) != 1:
                raise Faults(["ESCAPE takes one character after LIKE"])
        _no_bare_predicate(node.this)
        value, pattern = self._all([node.this, node.expression])
        found = texts.like(value, pattern, escape)
        return operators.negation(found) if node.args.get("negate") else found

    def not_(self, node: exp.Expression) -> Typed:
        """Type ``NOT``."""
        return operators.negation(*self._all([node.this]))

    def connective(self, node: exp.Expression) -> Typed:
        """Type ``AND`` and ``OR``."""
        left, right = self._all([node.this, node.expression])
        return operators.connective("AND" if isinstance(node, exp.And) else "OR", left, right)

    def concat(self, node: exp.Expression) -> Typed:
        """Type ``||``."""
        if isinstance(node.this, exp.Add | exp.Sub) or isinstance(node.expression, exp.Add | exp.Sub):
            raise Faults(["put parentheses around a sum beside ||"])
        return texts.concat(self._all([node.this, node.expression]))

    def division(self, node: exp.Expression) -> Typed:
        """Type ``DIV``."""
        return operators.integer_division(*self._all([node.this, node.expression]))

    def access(self, node: exp.Expression) -> Typed:
        """Type ``m[key]`` and ``a[0]``."""
        if len(node.expressions) != 1:
            raise Faults(["[ ] takes one key or index"])
        container, key = self._all([node.this, node.expressions[0]])
        return operators.access(container, key)

    def null(self, _: exp.Expression) -> Typed:
        """Type ``NULL``."""
        return literal(None, VOID, "NULL")

    def boolean(self, node: exp.Expression) -> Typed:
        """Type ``TRUE`` and ``FALSE``."""
        return literal(bool(node.this), BOOLEAN, str(bool(node.this)).upper())


_NODES: dict[type[exp.Expression], Callable[[_Checker, exp.Expression], Typed]] = {
    exp.Column: _Checker.column,
    exp.Literal: _Checker.literal,
    exp.Null: _Checker.null,
    exp.Boolean: _Checker.boolean,
    exp.Neg: _Checker.negative,
    exp.Anonymous: _Checker.call,
    exp.If: _Checker.if_,
    exp.Case: _Checker.case,
    exp.Cast: _Checker.cast,
    exp.TryCast: _Checker.cast,
    exp.Is: _Checker.is_,
    exp.In: _Checker.in_,
    exp.Between: _Checker.between,
    exp.Like: _Checker.like,
    exp.Escape: _Checker.like,
    exp.Not: _Checker.not_,
    exp.And: _Checker.connective,
    exp.Or: _Checker.connective,
    exp.DPipe: _Checker.concat,
    exp.IntDiv: _Checker.division,
    exp.Bracket: _Checker.access,
}


_AGGREGATES = frozenset(
    {"any_value", "approx_count_distinct", "approx_percentile", "avg", "bool_and", "bool_or", "collect_list"}
    | {"collect_set", "count", "count_if", "every", "first", "first_value", "kurtosis", "last", "last_value", "max"}
    | {"max_by", "mean", "median", "min", "min_by", "mode", "percentile", "percentile_approx", "skewness", "some"}
    | {"std", "stddev", "stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp", "variance"}
)
"""Spark's usual aggregates. None of them is a function of derivations."""


def _no_bare_predicate(node: exp.Expression) -> None:
    if isinstance(node, _PREDICATES):
        raise Faults(["put parentheses around a condition that is tested"])


def _located(typed: Typed, text: str) -> Typed:
    """Return `typed` with failures that name `text`."""
    inner = typed.emit

    def emit(code: Code) -> str:
        with code.at(text):
            return inner(code)

    return replace(typed, emit=emit)


def _sql_name(node: exp.Expression) -> str:
    return {
        "Star": "*",
        "Subquery": "a query",
        "Select": "a query",
        "Concat": "two texts side by side (write \\')",
    }.get(type(node).__name__, type(node).__name__.upper())


def _number(text: str, sign: str) -> Typed:
    """Return a number with Spark's type: int, long, decimal, or double with an exponent."""
    if _WHOLE.fullmatch(text):
        value = int(sign + text)
        type_ = INT if -(1 << 31) <= value < 1 << 31 else LONG
        if -(1 << 63) <= value < 1 << 63:
            return literal(value, type_, f"CAST({value} AS BIGINT)" if type_ == LONG else f"({value})")
        text += "."
    if _EXACT.fullmatch(text):
        exact = Decimal(f"{sign}0{text.rstrip('.')}")
        scale = len(text.partition(".")[2])
        whole = len(str(abs(int(exact)))) if int(exact) else 0
        precision = max(whole + scale, 1)
        if precision > DECIMAL_DIGITS:
            raise Faults([f"the number has more than {DECIMAL_DIGITS} digits"])
        made = decimal_of(precision, scale)
        return literal(exact, made, f"CAST('{exact:f}' AS {made.sql})")
    if _SCIENTIFIC.fullmatch(text):
        return literal(float(sign + text), DOUBLE, f"CAST('{sign}{text}' AS DOUBLE)")
    raise Faults([f"{text!r} is not a number; put spaces around operators"])


def _type_of(node: exp.Expression) -> DataType:
    text = node.sql(dialect="spark").lower()
    try:
        return parse_spark_type(text)
    except OptionError as error:
        raise Faults([str(error)]) from None
