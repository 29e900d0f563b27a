"""Arithmetic, comparison, logic, CASE, and access to arrays and maps."""

from collections.abc import Callable, Sequence
from typing import Any

from millpond.features.derivations import numbers
from millpond.features.derivations.casts import cast, coerce
from millpond.features.derivations.typed import MAY_BE_NONE, Code, Failure, Faults, Typed, strict
from millpond.features.derivations.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    as_decimal,
    common_type,
    decimal_of,
    product_type,
    quotient_type,
    remainder_type,
    sum_type,
)
from millpond.features.types import DECIMAL_DIGITS, DataType

_OVERFLOW = "overflow"
_BY_ZERO = "division by zero"
_RANGES = {"int": numbers.INT_RANGE, "long": numbers.LONG_RANGE}
_SYMBOLS = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
_DECIMAL_RULES: dict[str, tuple[Callable[..., Any], Callable[[DataType, DataType], DataType]]] = {
    "+": (numbers.decimal_sum, sum_type),
    "-": (numbers.decimal_difference, sum_type),
    "*": (numbers.decimal_product, product_type),
    "/": (numbers.decimal_quotient, quotient_type),
    "%": (numbers.decimal_remainder, remainder_type),
}


def _numbers_only(symbol: str, *values: Typed) -> None:
    for value in values:
        if not (value.type.is_numeric or value.type.kind == "void"):
            raise Faults([f"{symbol} needs numbers, got {value.type}"])


def arithmetic(symbol: str, left: Typed, right: Typed) -> Typed:
    """``+``, ``-``, ``*``, ``/`` or ``%``."""
    _numbers_only(symbol, left, right)
    if left.type.kind == "void" and right.type.kind == "void":
        left, right = cast(left, DOUBLE), cast(right, DOUBLE)
    left, right = _without_void(left, right), _without_void(right, left)
    if "decimal" in {left.type.kind, right.type.kind}:
        _no_short_long(left, right)
    if left.type.is_floating or right.type.is_floating:
        return _floating(symbol, left, right)
    if "decimal" in {left.type.kind, right.type.kind}:
        return _decimal(symbol, _decimal_operand(left), _decimal_operand(right))
    if symbol == "/":
        return _floating(symbol, left, right)
    wide = LONG if LONG in {left.type, right.type} else INT
    left, right = cast(left, wide), cast(right, wide)
    if symbol == "%":
        failure = Failure(_BY_ZERO, unless="{1} == 0")
        return strict(wide, "try_mod({0}, {1})", [left, right], numbers.java_remainder, failure=failure)
    failure = Failure(_OVERFLOW, valid=_RANGES[wide.kind])
    return strict(wide, f"{_SYMBOLS[symbol]}({{0}}, {{1}})", [left, right], f"{{0}} {symbol} {{1}}", failure=failure)


def _without_void(value: Typed, other: Typed) -> Typed:
    return cast(value, other.type) if value.type.kind == "void" else value


def _no_short_long(*values: Typed) -> None:
    """Raise for ``5L`` beside a decimal: Spark types it unlike ``CAST(5 AS BIGINT)``, and here both look the same."""
    for value in values:
        if value.literal and value.type == LONG and -(1 << 31) <= value.value < 1 << 31:
            raise Faults([f"beside a decimal, write {value.value} without L or BIGINT"])


def _decimal_operand(value: Typed) -> Typed:
    """Return an integer beside a decimal as a decimal; a literal gets as many digits as it is written with."""
    if value.type.kind == "decimal":
        return value
    if value.literal and value.value is not None:
        return cast(value, decimal_of(len(str(abs(value.value))), 0))
    return cast(value, as_decimal(value.type))


def _floating(symbol: str, left: Typed, right: Typed) -> Typed:
    single = left.type == right.type and left.type.kind == "float" and symbol != "/"
    kind = left.type if single else DOUBLE
    args = [cast(left, kind), cast(right, kind)]
    rounded = f"{{2}}({{0}} {symbol} {{1}})" if single else f"{{0}} {symbol} {{1}}"
    extra = [numbers.to_float32] if single else []
    if symbol == "/":
        return strict(kind, "try_divide({0}, {1})", args, "{0} / {1}", failure=Failure(_BY_ZERO, unless="{1} == 0"))
    if symbol == "%":
        failure = Failure(_BY_ZERO, unless="{1} == 0")
        return strict(kind, "try_mod({0}, {1})", args, numbers.float_remainder, failure=failure)
    return strict(kind, f"({{0}} {symbol} {{1}})", args, rounded, extra=extra)


def _decimal(symbol: str, left: Typed, right: Typed) -> Typed:
    python, rule = _DECIMAL_RULES[symbol]
    type_ = rule(left.type, right.type)
    whole_digits = left.type.precision - left.type.scale + right.type.scale
    if symbol == "%" and whole_digits > DECIMAL_DIGITS:
        raise Faults([f"Spark cannot divide {left.type} by {right.type} for a remainder; cast them to fewer digits"])
    unless = "{1} == 0" if symbol in "/%" else ""
    sql = {"/": "try_divide", "%": "try_mod"}.get(symbol) or _SYMBOLS[symbol]
    failure = Failure(_BY_ZERO if unless else _OVERFLOW, unless=unless, valid=MAY_BE_NONE)
    extra = numbers.bounds(type_.precision, type_.scale)
    return strict(type_, f"{sql}({{0}}, {{1}})", [left, right], python, failure=failure, extra=extra)


def integer_division(left: Typed, right: Typed) -> Typed:
    """``DIV``: the quotient of two integers without its fraction, a long."""
    for value in (left, right):
        if not (value.type.is_integral or value.type.kind == "void"):
            raise Faults([f"DIV needs int or long, got {value.type}"])
    left, right = cast(left, LONG), cast(right, LONG)
    sql = "IF({1} = 0 OR ({1} = -1 AND {0} = -9223372036854775808L), NULL, {0} DIV {1})"
    failure = Failure(f"{_BY_ZERO} or {_OVERFLOW}", unless="{1} == 0", valid=numbers.LONG_RANGE)
    return strict(LONG, sql, [left, right], numbers.java_quotient, failure=failure)


_SIGN_DIGITS = 34


def _sign_is_exact(value: Typed) -> None:
    if value.type.precision > _SIGN_DIGITS:
        raise Faults(
            [f"Spark changes the sign of a decimal exactly up to {_SIGN_DIGITS} digits, got {value.type}; write a CAST"]
        )


def negative(value: Typed) -> Typed:
    """``-x``."""
    _numbers_only("-", value)
    kind = value.type.kind
    if kind in _RANGES:
        zero = f"CAST(0 AS {value.type.sql})"
        return strict(
            value.type, f"try_subtract({zero}, {{0}})", [value], "-{0}", failure=Failure(_OVERFLOW, valid=_RANGES[kind])
        )
    if kind == "decimal":
        _sign_is_exact(value)
        return strict(value.type, "(- {0})", [value], "{0}.copy_negate() if {0} else {0}")
    return strict(value.type, "(- {0})", [cast(value, DOUBLE) if kind == "void" else value], "-{0}")


def absolute(value: Typed) -> Typed:
    """``abs(x)``."""
    _numbers_only("abs", value)
    kind = value.type.kind
    if kind in _RANGES:
        zero = f"CAST(0 AS {value.type.sql})"
        return strict(
            value.type,
            f"IF({{0}} < 0, try_subtract({zero}, {{0}}), {{0}})",
            [value],
            "abs({0})",
            failure=Failure(_OVERFLOW, valid=_RANGES[kind]),
        )
    _sign_is_exact(value)
    python = "{0}.copy_abs()" if kind == "decimal" else "abs({0})"
    return strict(value.type, "abs({0})", [value], python)


# Comparison. NaN equals itself and is above every other number, as in Spark's ORDER BY.

_FLOAT_TESTS = {
    "=": "{0} == {1} or ({0} != {0} and {1} != {1})",
    "<": "{0} < {1} or ({1} != {1} and {0} == {0})",
    "<=": "{0} <= {1} or {1} != {1}",
    ">": "{0} > {1} or ({0} != {0} and {1} == {1})",
    ">=": "{0} >= {1} or {0} != {0}",
    "<>": "not ({0} == {1} or ({0} != {0} and {1} != {1}))",
}
_TESTS = {"=": "{0} == {1}", "<>": "{0} != {1}"} | {
    symbol: f"{{0}} {symbol} {{1}}" for symbol in ("<", "<=", ">", ">=")
}


def comparing(symbol: str, type_: DataType) -> str:
    """Return the Python text of a comparison of two values, neither of which is None."""
    return (_FLOAT_TESTS if type_.is_floating else _TESTS)[symbol]


def together(values: Sequence[Typed], what: str) -> list[Typed]:
    """Return all `values` as their common type.

    Raises:
        Faults: they have no common type.
    """
    written_times = [value.type for value in values if value.type in {DATE, TIMESTAMP}]
    if written_times and any(value.type == STRING for value in values):
        values = [coerce(value, written_times[0]) if value.type == STRING else value for value in values]
    wide = values[0].type
    for value in values[1:]:
        widened = common_type(wide, value.type)
        if widened is None:
            raise Faults([f"{what} needs values of one type, got {wide} and {value.type}; write a CAST"])
        wide = widened
    return [cast(value, wide) for value in values]


def comparison(symbol: str, left: Typed, right: Typed) -> Typed:
    """``=``, ``<>``, ``<``, ``<=``, ``>`` or ``>=``: null if either is null."""
    left, right = _comparable(symbol, left, right)
    return strict(BOOLEAN, f"({{0}} {symbol} {{1}})", [left, right], comparing(symbol, left.type))


def _comparable(symbol: str, left: Typed, right: Typed) -> list[Typed]:
    if left.literal and left.type.is_integral and right.type.kind == "decimal":
        left = _decimal_operand(left)
    if right.literal and right.type.is_integral and left.type.kind == "decimal":
        right = _decimal_operand(right)
    values = together([left, right], symbol)
    if not values[0].type.is_ordered:
        raise Faults([f"{symbol} cannot compare {values[0].type}"])
    return values


def null_safe_equal(left: Typed, right: Typed, *, negate: bool = False) -> Typed:
    """``<=>``: never null; two nulls are equal."""
    left, right = _comparable("<=>", left, right)

    def emit(code: Code) -> str:
        first, second = left.emit(code), right.emit(code)
        result = code.variable()
        test = comparing("=", left.type).format(first, second)
        one_null = f"{first} is None or {second} is None"
        outcome = f"({first} is None and {second} is None) if {one_null} else ({test})"
        code.line(f"{result} = {f'not ({outcome})' if negate else outcome}")
        return result

    sql = f"({left.sql} <=> {right.sql})"
    return Typed(BOOLEAN, f"(NOT {sql})" if negate else sql, emit, nullable=False)


def is_null(value: Typed) -> Typed:
    """``IS NULL``."""

    def emit(code: Code) -> str:
        operand = value.emit(code)
        result = code.variable()
        code.line(f"{result} = {operand} is None")
        return result

    return Typed(BOOLEAN, f"({value.sql} IS NULL)", emit, nullable=False)


def is_boolean(value: Typed, wanted: bool) -> Typed:
    """``IS TRUE`` or ``IS FALSE``: never null."""
    (value,) = _conditions("IS", value)

    def emit(code: Code) -> str:
        operand = value.emit(code)
        result = code.variable()
        code.line(f"{result} = {operand} is {wanted}")
        return result

    return Typed(BOOLEAN, f"({value.sql} IS {str(wanted).upper()})", emit, nullable=False)


def negation(value: Typed) -> Typed:
    """``NOT``: null stays null."""
    return strict(BOOLEAN, "(NOT {0})", _conditions("NOT", value), "not {0}")


def _conditions(what: str, *values: Typed) -> list[Typed]:
    for value in values:
        if value.type.kind not in {"boolean", "void"}:
            raise Faults([f"{what} needs a condition, got {value.type}"])
    return [cast(value, BOOLEAN) for value in values]


def connective(word: str, left: Typed, right: Typed) -> Typed:
    """``AND`` or ``OR`` in three-valued logic. The right side is evaluated only if it matters."""
    left, right = _conditions(word, left, right)
    decides = word == "OR"

    def emit(code: Code) -> str:
        result = code.variable()
        code.line(f"{result} = {left.emit(code)}")
        with code.block(f"if {result} is not {decides}:"):
            second = right.emit(code)
            code.line(f"{result} = {second} if {result} is not None or {second} is {decides} else None")
        return result

    return Typed(BOOLEAN, f"({left.sql} {word} {right.sql})", emit, left.nullable or right.nullable)


def between(value: Typed, low: Typed, high: Typed) -> Typed:
    """``x BETWEEN a AND b``, including both ends."""
    value, low, high = together([value, low, high], "BETWEEN")
    if not value.type.is_ordered:
        raise Faults([f"BETWEEN cannot compare {value.type}"])
    held = _held(value)
    both = connective("AND", comparison(">=", held, low), comparison("<=", held, high))

    def emit(code: Code) -> str:
        held.emit(code)
        return both.emit(code)

    return Typed(BOOLEAN, f"({value.sql} BETWEEN {low.sql} AND {high.sql})", emit, both.nullable)


def _held(value: Typed) -> Typed:
    """Return `value` in a form that is evaluated once: the first `emit` writes it, all later ones return its name."""
    names: dict[Code, str] = {}

    def emit(code: Code) -> str:
        if code not in names:
            names[code] = value.emit(code)
        return names[code]

    return Typed(value.type, value.sql, emit, value.nullable, value.literal, value.value)


def is_in(value: Typed, choices: Sequence[Typed]) -> Typed:
    """``x IN (a, b)``: null if x is, or if no choice equals it and one of them is null."""
    value, *choices = together([value, *choices], "IN")
    if not value.type.is_ordered:
        raise Faults([f"IN cannot compare {value.type}"])
    sql = f"({value.sql} IN ({', '.join(choice.sql for choice in choices)}))"
    nullable = value.nullable or any(choice.nullable for choice in choices)

    def emit(code: Code) -> str:
        operand = value.emit(code)
        names = [choice.emit(code) for choice in choices]
        tests = [f"({name} is not None and ({comparing('=', value.type).format(operand, name)}))" for name in names]
        unknown = " or ".join(f"{name} is None" for name in names)
        result = code.variable()
        code.line(
            f"{result} = None if {operand} is None else True if {' or '.join(tests)} else None if {unknown} else False"
        )
        return result

    return Typed(BOOLEAN, sql, emit, nullable)


# Choice.


def case(branches: Sequence[tuple[Typed, Typed]], otherwise: Typed | None) -> Typed:
    """``CASE WHEN``: the value of the first condition that is true. Only the chosen value is evaluated."""
    conditions = _conditions("WHEN", *(condition for condition, _ in branches))
    values = [value for _, value in branches] + ([otherwise] if otherwise else [])
    values = together(values, "CASE")
    type_ = values[0].type
    default = values[-1] if otherwise else None
    chosen = list(zip(conditions, values, strict=False))
    arms = " ".join(f"WHEN {condition.sql} THEN {value.sql}" for condition, value in chosen)
    sql = f"CASE {arms} ELSE {default.sql} END" if default else f"CASE {arms} END"

    def emit(code: Code) -> str:
        result, undecided = code.variable(), code.variable()
        code.line(f"{result} = None")
        code.line(f"{undecided} = True")
        for condition, value in chosen:
            with code.block(f"if {undecided}:"):
                test = condition.emit(code)
                with code.block(f"if {test}:"):
                    code.line(f"{undecided} = False")
                    code.line(f"{result} = {value.emit(code)}")
        if default:
            with code.block(f"if {undecided}:"):
                code.line(f"{result} = {default.emit(code)}")
        return result

    return Typed(type_, sql, emit, default is None or any(value.nullable for value in values))


def case_of(subject: Typed, branches: Sequence[tuple[Typed, Typed]], otherwise: Typed | None) -> Typed:
    """``CASE x WHEN a THEN b``: compares x, evaluated once, with one value after another."""
    held = _held(subject)
    choice = case([(comparison("=", held, value), outcome) for value, outcome in branches], otherwise)

    def emit(code: Code) -> str:
        held.emit(code)
        return choice.emit(code)

    return Typed(choice.type, choice.sql, emit, choice.nullable)


def coalesce(values: Sequence[Typed]) -> Typed:
    """``coalesce``: the first value that is not null. Values after it are not evaluated."""
    values = together(values, "coalesce")

    def emit(code: Code) -> str:
        result = code.variable()
        code.line(f"{result} = {values[0].emit(code)}")
        for value in values[1:]:
            with code.block(f"if {result} is None:"):
                code.line(f"{result} = {value.emit(code)}")
        return result

    sql = f"coalesce({', '.join(value.sql for value in values)})"
    return Typed(values[0].type, sql, emit, all(value.nullable for value in values))


def null_if(value: Typed, other: Typed) -> Typed:
    """``nullif(x, y)``: null if they are equal, else x."""
    held = _held(value)
    equal = comparison("=", held, other)

    def emit(code: Code) -> str:
        operand = held.emit(code)
        result = code.variable()
        test = equal.emit(code)
        code.line(f"{result} = None if {test} else {operand}")
        return result

    return Typed(value.type, f"IF({equal.sql}, NULL, {value.sql})", emit)


def extreme(values: Sequence[Typed], name: str) -> Typed:
    """``greatest`` or ``least``: nulls are skipped; NaN is the greatest."""
    values = together(values, name)
    if not values[0].type.is_ordered:
        raise Faults([f"{name} cannot compare {values[0].type}"])
    test = comparing(">" if name == "greatest" else "<", values[0].type)

    def emit(code: Code) -> str:
        result = code.variable()
        code.line(f"{result} = {values[0].emit(code)}")
        for value in values[1:]:
            other = value.emit(code)
            with code.block(f"if {other} is not None and ({result} is None or ({test.format(other, result)})):"):
                code.line(f"{result} = {other}")
        return result

    sql = f"{name}({', '.join(value.sql for value in values)})"
    return Typed(values[0].type, sql, emit, all(value.nullable for value in values))


# Access.


def access(container: Typed, key: Typed) -> Typed:
    """``m[key]`` and ``a[0]``. A missing key is null; an index outside the array fails."""
    if container.type.kind == "map":
        return map_value(container, key)
    if container.type.kind != "array" or container.type.element is None:
        raise Faults([f"[ ] needs an array or a map, got {container.type}"])
    index = coerce(key, INT)
    failure = Failure("index outside the array", unless="not 0 <= {1} < len({0})")
    return strict(container.type.element, "get({0}, {1})", [container, index], "{0}[{1}]", failure=failure)


def map_value(container: Typed, key: Typed) -> Typed:
    """Return the lookup of `key` in a map; a missing key is null."""
    key_type, element = container.type.key, container.type.element
    if key_type is None or element is None or key_type.is_floating:
        raise Faults([f"the keys of {container.type} cannot be looked up exactly"])
    key = coerce(key, key_type)
    return strict(element, "{0}[{1}]", [container, key], "{0}.get({1})", nullable=True)


def element_at(container: Typed, key: Typed) -> Typed:
    """``element_at``: a map's value; an array's element from 1, or from the end from -1."""
    if container.type.kind == "map":
        return map_value(container, key)
    if container.type.kind != "array" or container.type.element is None:
        raise Faults([f"element_at needs an array or a map, got {container.type}"])
    key = coerce(key, INT)
    failure = Failure("index outside the array", unless="not 1 <= abs({1}) <= len({0})")
    sql = "try_element_at({0}, nullif({1}, 0))"
    return strict(container.type.element, sql, [container, key], "{0}[{1} - 1 if {1} > 0 else {1}]", failure=failure)
