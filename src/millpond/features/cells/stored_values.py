"""The form of whole numbers and single values in stored cells.

MessagePack has integers of 64 bits. A larger one is written as its big-endian bytes. It is read back
only up to the length that its cell can reach, so that no stored byte can ask for much memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

from millpond.features.scalar_values import LONG_MAX, LONG_MIN
from millpond.features.types import DataType

_LONG_DIGITS = 18
"""Decimals of up to this many digits fit into 64 bits."""


def encode_int(number: int) -> int | bytes:
    r"""Return a number of 64 bits as it is, and a larger one as big-endian bytes.

    >>> encode_int(-5), encode_int(1 << 64)
    (-5, b'\x01\x00\x00\x00\x00\x00\x00\x00\x00')
    """
    if LONG_MIN <= number <= LONG_MAX:
        return number
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def decode_int(stored: Any, max_bytes: int) -> int:
    """Decode what `encode_int` wrote.

    Raises:
        TypeError: the stored form is neither an int nor bytes.
        ValueError: it is longer than ``max_bytes``, or not in its shortest form.

    >>> decode_int(encode_int(1 << 64), max_bytes=16) == 1 << 64
    True
    """
    if type(stored) is int:
        if not LONG_MIN <= stored <= LONG_MAX:
            raise ValueError(f"a whole number of more than 64 bits is stored as bytes, found {stored}")
        return stored
    if type(stored) is not bytes:
        raise TypeError(f"expected a whole number, found {type(stored).__name__}")
    if len(stored) > max_bytes:
        raise ValueError(f"a whole number of {len(stored)} bytes, expected at most {max_bytes}")
    number = int.from_bytes(stored, "big", signed=True)
    if LONG_MIN <= number <= LONG_MAX or len(stored) != number.bit_length() // 8 + 1:
        raise ValueError(f"a whole number of {len(stored)} bytes is not in its shortest form")
    return number


def is_plain(type_: DataType) -> bool:
    """Return whether values of a scalar type are stored as they are."""
    return type_.kind != "decimal" or type_.precision <= _LONG_DIGITS


def value_encoder(type_: DataType) -> Callable[[Any], Any]:
    """Return the function that encodes one value of a scalar type.

    >>> from millpond.features.types import parse_type
    >>> value_encoder(parse_type("string"))("a")
    'a'
    """
    return as_is if is_plain(type_) else encode_int


def value_decoder(type_: DataType) -> Callable[[Any], Any]:
    """Return the function that decodes a value of a scalar type; it raises TypeError or ValueError on anything else."""
    form = type_.form
    if is_plain(type_):
        return form.checked
    return lambda stored: form.checked(decode_int(stored, 17))


def as_is(stored: Any) -> Any:
    """Return the argument."""
    return stored


def list_of(stored: Any, most: int | None = None) -> Sequence[Any]:
    """Return a stored list; raise if it is not a list, or longer than ``most``."""
    if type(stored) is not list:
        raise TypeError(f"expected a list, found {type(stored).__name__}")
    if most is not None and len(stored) > most:
        raise ValueError(f"a list of {len(stored)} items, expected at most {most}")
    return stored
