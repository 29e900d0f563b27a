"""Functions of numbers.

``exp``, ``ln``, ``pow`` and the like may differ from Java's in the last digit of a double; all others are equal.
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal

from millpond.features.derivations import numbers
from millpond.features.derivations.casts import cast, coerce
from millpond.features.derivations.functions import UNLIMITED, Function, function, plain, written
from millpond.features.derivations.operators import absolute, arithmetic, extreme
from millpond.features.derivations.typed import Code, Failure, Faults, Typed, strict
from millpond.features.derivations.types import BOOLEAN, DOUBLE, INT, LONG, decimal_of
from millpond.features.types import DECIMAL_DIGITS, DataType

_X = (("x", DOUBLE),)
_MOST_PLACES = 38


def _round_decimal(value: Decimal, step: Decimal, rounding: str) -> Decimal:
    rounded = value.quantize(step, rounding, numbers.EXACT)
    return rounded or abs(rounded)


def _rounding(name: str, rounding: str) -> Function:
    def build(args: Sequence[Typed]) -> Typed:
        value = args[0]
        places = written(args[1], INT, "places") if len(args) > 1 else 0
        if not 0 <= places <= _MOST_PLACES:
            raise Faults([f"argument places must be 0 to {_MOST_PLACES}, got {places}"])
        sql = f"{name}({{0}}, {places})"
        kind = value.type.kind
        if kind in {"int", "long"}:
            return strict(value.type, sql, [value], "{0}")
        if kind == "decimal":
            scale = min(value.type.scale, places)
            type_ = decimal_of(min(value.type.precision - value.type.scale + 1 + scale, DECIMAL_DIGITS), scale)
            extra = [numbers.bounds(type_.precision, scale)[0], rounding]
            return strict(type_, sql, [value], _round_decimal, extra=extra)
        value = value if kind == "float" else coerce(value, DOUBLE)
        return strict(value.type, sql, [value], numbers.rounded_float, extra=[places, rounding, kind == "float"])

    how = "halves away from zero" if rounding == numbers.HALF_UP else "halves to the even digit"
    return function(
        name,
        "x, places",
        f"x rounded to `places` digits after the point (a constant, 0 if left out), {how}.",
        build,
        1,
        2,
    )


def _whole(names: str, says: str, of_float: Callable[[float], int], rounding: str) -> Function:
    def build(args: Sequence[Typed]) -> Typed:
        value = args[0]
        if value.type.is_integral:
            return cast(value, LONG)
        sql = f"{names.partition(' ')[0]}({{0}})"
        if value.type.kind != "decimal":
            value = coerce(value, DOUBLE)
            guarded = f"IF({{0}} >= -9223372036854775808D AND {{0}} < 9223372036854775808D, {sql}, NULL)"
            failure = Failure("overflow", unless=f"not {-(2.0**63)!r} <= {{0}} < {2.0**63!r}")
            return strict(LONG, guarded, [value], of_float, failure=failure)
        scale = value.type.scale
        type_ = decimal_of(value.type.precision - scale + 1, 0) if scale else value.type
        return strict(type_, sql, [value], _round_decimal, extra=[Decimal(1), rounding])

    return function(names, "x", says, build, 1)


def _logarithm(args: Sequence[Typed]) -> Typed:
    values = [coerce(arg, DOUBLE) for arg in args]
    if len(values) == 1:
        return strict(DOUBLE, "ln({0})", values, _natural, nullable=True)
    return strict(DOUBLE, "log({0}, {1})", values, numbers.logarithm, nullable=True)


def _natural(value: float) -> float | None:
    return None if value <= 0 else math.log(value)


def _common(value: float) -> float | None:
    return None if value <= 0 else math.log10(value)


def _binary(value: float) -> float | None:
    return None if value <= 0 else math.log2(value)


def _of_one_more(value: float) -> float | None:
    return None if value <= -1 else math.log1p(value)


def _positive_remainder(args: Sequence[Typed]) -> Typed:
    left, right = args
    failure = Failure("division by zero", unless="{1} == 0")
    sql = "pmod({0}, nullif({1}, CAST(0 AS %s)))"
    if left.type.is_integral and right.type.is_integral:
        wide: DataType = LONG if LONG in {left.type, right.type} else INT
        values = [cast(left, wide), cast(right, wide)]
        return strict(
            wide,
            sql % wide.sql,
            values,
            numbers.positive_integer_remainder,
            failure=failure,
            extra=[64 if wide == LONG else 32],
        )
    if "decimal" in {left.type.kind, right.type.kind}:
        raise Faults(["pmod needs int, long or double; write a CAST"])
    values = [coerce(left, DOUBLE), coerce(right, DOUBLE)]
    return strict(DOUBLE, sql % "DOUBLE", values, numbers.positive_float_remainder, failure=failure)


def _is_nan(args: Sequence[Typed]) -> Typed:
    value = coerce(args[0], DOUBLE)

    def emit(code: Code) -> str:
        operand, result = value.emit(code), code.variable()
        code.line(f"{result} = {operand} is not None and {operand} != {operand}")
        return result

    return Typed(BOOLEAN, f"isnan({value.sql})", emit, nullable=False)


def _instead_of_nan(args: Sequence[Typed]) -> Typed:
    value, other = (coerce(arg, DOUBLE) for arg in args)

    def emit(code: Code) -> str:
        result = code.variable()
        code.line(f"{result} = {value.emit(code)}")
        with code.block(f"if {result} != {result}:"):
            code.line(f"{result} = {other.emit(code)}")
        return result

    return Typed(DOUBLE, f"nanvl({value.sql}, {other.sql})", emit, value.nullable or other.nullable)


def _trigonometric(name: str) -> Function:
    python = getattr(math, name)

    def of(value: float) -> float:
        return float(python(value)) if math.isfinite(value) else math.nan

    return plain(name, _X, DOUBLE, of, f"The {name} of x, in radians.")


FUNCTIONS: tuple[Function, ...] = (
    function("abs", "x", "x without its sign. The least int and long fail.", lambda args: absolute(args[0]), 1),
    function(
        "mod",
        "x, y",
        "The remainder of x ÷ y, with the sign of x. A y of 0 fails.",
        lambda args: arithmetic("%", args[0], args[1]),
        2,
    ),
    function(
        "pmod", "x, y", "The remainder of x ÷ y, at least 0 for a positive y. A y of 0 fails.", _positive_remainder, 2
    ),
    function(
        "greatest",
        "x, y, …",
        "The greatest that is not null. NaN is above all numbers.",
        lambda args: extreme(args, "greatest"),
        2,
        UNLIMITED,
    ),
    function("least", "x, y, …", "The least that is not null.", lambda args: extreme(args, "least"), 2, UNLIMITED),
    _rounding("round", numbers.HALF_UP),
    _rounding("bround", numbers.HALF_EVEN),
    _whole(
        "floor", "The largest whole number not above x: a long, or a decimal for decimals.", math.floor, "ROUND_FLOOR"
    ),
    _whole(
        "ceil ceiling",
        "The smallest whole number not below x: a long, or a decimal for decimals.",
        math.ceil,
        "ROUND_CEILING",
    ),
    plain("sign signum", _X, DOUBLE, numbers.sign, "-1.0, 0.0 or 1.0."),
    plain("sqrt", _X, DOUBLE, numbers.square_root, "The square root; NaN below 0."),
    plain("cbrt", _X, DOUBLE, math.cbrt, "The cube root."),
    plain("exp", _X, DOUBLE, numbers.exponential, "e to the x."),
    plain("expm1", _X, DOUBLE, numbers.exponential_less_one, "e to the x, less 1."),
    plain("ln", _X, DOUBLE, _natural, "The natural logarithm; null at 0 and below.", nullable=True),
    function(
        "log", "base, x", "The logarithm of x to a base, or the natural one; null at 0 and below.", _logarithm, 1, 2
    ),
    plain("log10", _X, DOUBLE, _common, "The logarithm to base 10; null at 0 and below.", nullable=True),
    plain("log2", _X, DOUBLE, _binary, "The logarithm to base 2; null at 0 and below.", nullable=True),
    plain("log1p", _X, DOUBLE, _of_one_more, "ln(1 + x); null at -1 and below.", nullable=True),
    plain("pow power", (("x", DOUBLE), ("y", DOUBLE)), DOUBLE, numbers.power, "x to the y."),
    _trigonometric("sin"),
    _trigonometric("cos"),
    _trigonometric("tan"),
    plain("atan", _X, DOUBLE, math.atan, "The angle whose tangent is x."),
    function("isnan", "x", "Whether x is NaN; false for null.", _is_nan, 1),
    function("nanvl", "x, y", "x, or y if x is NaN.", _instead_of_nan, 2),
)
