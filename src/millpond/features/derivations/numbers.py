"""Numbers as Java computes them, where Python differs.

Compiled derivations call these functions. A result of None is a failure or a null, as the caller decides.
"""

import math
import re
import struct
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, InvalidOperation

INT_RANGE = "-2147483648 <= {v} <= 2147483647"
LONG_RANGE = "-9223372036854775808 <= {v} <= 9223372036854775807"
_LONG_MAX = (1 << 63) - 1

EXACT = Context(prec=120, rounding=ROUND_HALF_UP, Emax=999999, Emin=-999999)
"""Enough digits for any sum, product and rounding of two decimals of 38 digits."""
_QUOTIENT = Context(prec=120, rounding=ROUND_DOWN)

_FLOAT32 = struct.Struct("<f")
_DOUBLE_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?")
_SPECIAL = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


def to_float32(value: float) -> float:
    """Return `value` rounded to 32 bits; infinite if it is outside their range."""
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


_SMALL, _LARGE = 3, 7


def java_text(value: float) -> str:
    """Return `value` as Java writes it: with an exponent from ten million up (``1.0E7``) and below a thousandth.

    >>> java_text(0.5), java_text(1e7), java_text(-0.00012), java_text(float("inf"))
    ('0.5', '1.0E7', '-1.2E-4', 'Infinity')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    mantissa = "".join(map(str, digits))
    point = len(mantissa) + int(exponent)
    minus = "-" if sign else ""
    if -_SMALL < point <= _LARGE:
        padded = mantissa.rjust(len(mantissa) - point + 1, "0") if point <= 0 else mantissa.ljust(point, "0")
        cut = max(point, 1)
        return f"{minus}{padded[:cut]}.{padded[cut:] or '0'}"
    return f"{minus}{mantissa[0]}.{mantissa[1:] or '0'}E{point - 1}"


def parse_double(text: str) -> float | None:
    """Return the double that `text` has, by Java's rules; None if it has none."""
    text = trimmed(text)
    if _DOUBLE_TEXT.fullmatch(text):
        return float(text.rstrip("dDfF"))
    lower = text.lower()
    unsigned = lower[1:] if lower[:1] in {"+", "-"} else lower
    if unsigned == "nan":
        return math.nan if unsigned == lower else None
    if unsigned in _SPECIAL:
        return -math.inf if lower[0] == "-" else math.inf
    return None


def trimmed(text: str) -> str:
    """Return `text` without white space and control characters at both ends, as Spark trims it before a cast."""
    return text.strip("".join(map(chr, range(0x21))) + "\x7f")


_INTEGER_TEXT = re.compile(r"[+-]?[0-9]+")


def parse_integer(text: str) -> int | None:
    """Return the integer that `text` has; None if it has none."""
    text = trimmed(text)
    return int(text) if _INTEGER_TEXT.fullmatch(text) and len(text) < 4000 else None  # noqa: PLR2004 - int()'s own limit


_DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")


def parse_decimal(text: str) -> Decimal | None:
    """Return the decimal that `text` has; None if it has none."""
    text = trimmed(text)
    return Decimal(text) if _DECIMAL_TEXT.fullmatch(text) else None


def truncate(value: float) -> int | None:
    """Return `value` without its fraction; None if it is NaN or infinite."""
    return int(value) if math.isfinite(value) else None


def truncate_long(value: float) -> int | None:
    """Return `value` as a long without its fraction; 2**63 becomes the largest long, as in Java; None outside."""
    if not -(2.0**63) <= value <= 2.0**63:
        return None
    return min(int(value), _LONG_MAX)


def java_remainder(left: int, right: int) -> int:
    """Return the remainder of a division that truncates: it has the sign of `left`."""
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def java_quotient(left: int, right: int) -> int:
    """Return the quotient of a division that truncates."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def float_remainder(left: float, right: float) -> float:
    """Return the remainder of doubles; NaN if it is not defined."""
    return math.nan if math.isinf(left) else math.fmod(left, right)


def positive_integer_remainder(left: int, right: int, bits: int) -> int:
    """Return Spark's ``pmod`` of integers: the divisor is added to a negative remainder once, wrapping at `bits`."""
    remainder = java_remainder(left, right)
    if remainder >= 0:
        return remainder
    half = 1 << (bits - 1)
    return java_remainder((remainder + right + half) % (2 * half) - half, right)


def positive_float_remainder(left: float, right: float) -> float:
    """Return Spark's ``pmod`` of doubles."""
    remainder = float_remainder(left, right)
    return float_remainder(remainder + right, right) if remainder < 0 else remainder


def rounded_float(value: float, scale: int, rounding: str, single: bool) -> float:
    """Return `value` rounded as a decimal, from its shortest text, as Spark's ``round`` does."""
    if not math.isfinite(value):
        return value
    rounded = float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-scale), rounding, _WIDE)) + 0.0
    return to_float32(rounded) if single else rounded


_WIDE = Context(prec=1200, Emax=999999, Emin=-999999)
HALF_UP, HALF_EVEN = ROUND_HALF_UP, ROUND_HALF_EVEN


def fitted(value: Decimal, step: Decimal, limit: Decimal) -> Decimal | None:
    """Return `value` rounded half up to the digits of `step`; None if the result reaches `limit`."""
    try:
        rounded = value.quantize(step, ROUND_HALF_UP, EXACT)
    except InvalidOperation:
        return None
    if not -limit < rounded < limit:
        return None
    return rounded or abs(rounded)


def decimal_sum(left: Decimal, right: Decimal, step: Decimal, limit: Decimal) -> Decimal | None:
    """Return `left` + `right`."""
    return fitted(EXACT.add(left, right), step, limit)


def decimal_difference(left: Decimal, right: Decimal, step: Decimal, limit: Decimal) -> Decimal | None:
    """Return `left` - `right`."""
    return fitted(EXACT.subtract(left, right), step, limit)


def decimal_product(left: Decimal, right: Decimal, step: Decimal, limit: Decimal) -> Decimal | None:
    """Return `left` × `right`."""
    return fitted(EXACT.multiply(left, right), step, limit)


def decimal_quotient(left: Decimal, right: Decimal, step: Decimal, limit: Decimal) -> Decimal | None:
    """Return `left` ÷ `right`, rounded once: the digits cut off first do not change how half is rounded."""
    return fitted(_QUOTIENT.divide(left, right), step, limit)


def decimal_remainder(left: Decimal, right: Decimal, step: Decimal, limit: Decimal) -> Decimal | None:
    """Return the remainder, which has the sign of `left`."""
    return fitted(EXACT.remainder(left, right), step, limit)


def bounds(precision: int, scale: int) -> tuple[Decimal, Decimal]:
    """Return the unit of a decimal type's last digit, and the first number beyond the type's range."""
    return Decimal(1).scaleb(-scale), Decimal(1).scaleb(precision - scale)


def power(base: float, exponent: float) -> float:
    """Return `base` to the `exponent`, by Java's rules for NaN, infinities and overflow."""
    if exponent == 0:
        return 1.0
    if math.isnan(base) or math.isnan(exponent) or (math.isinf(exponent) and abs(base) == 1):
        return math.nan
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:
        if base == 0:  # to a negative power
            return math.copysign(math.inf, base) if exponent % 2 == 1 else math.inf
        return math.nan


def exponential(value: float) -> float:
    """Return Euler's e to the `value`."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def exponential_less_one(value: float) -> float:
    """Return Euler's e to the `value`, less 1."""
    try:
        return math.expm1(value)
    except OverflowError:
        return math.inf


def logarithm(base: float, value: float) -> float | None:
    """Return the logarithm of `value` to `base`; None if either is not above 0."""
    if base <= 0 or value <= 0:
        return None
    divisor, dividend = math.log(base), math.log(value)
    if divisor == 0:
        return math.nan if dividend == 0 or math.isnan(dividend) else math.copysign(math.inf, dividend)
    return math.nan if math.isinf(divisor) and math.isinf(dividend) else dividend / divisor


def square_root(value: float) -> float:
    """Return the square root; NaN below 0."""
    return math.sqrt(value) if value >= 0 else math.nan


def sign(value: float) -> float:
    """Return -1.0, 0.0 or 1.0; NaN for NaN."""
    return value if value == 0 or math.isnan(value) else math.copysign(1.0, value)
