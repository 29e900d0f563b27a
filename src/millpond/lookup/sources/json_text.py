"""The JSON that a source gives: decoded, or refused as data that is none.

What a source says is not trusted: it may be no text, nested deeper than Python reads, or have numbers that
no column holds.
"""

from typing import Any

import msgspec

from millpond.errors import DataError
from millpond.masking import masked

_SHOWN_CHARACTERS = 200


def decoded_json(where: str, text: bytes) -> Any:
    """What JSON says.

    Args:
        where: names the source, for errors.
        text: what it gave.

    Raises:
        DataError: it is not JSON, or nested too deep.

    >>> decoded_json("planes", b'{"year": 1999}')
    {'year': 1999}
    >>> decoded_json("planes", b"[" * 9999)
    Traceback (most recent call last):
    millpond.errors.DataError: planes: expected JSON, got '[[[[...
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{where}: expected JSON, got {shown(text.decode(errors='replace'))} ({error})") from error


def shown(value: object) -> str:
    """The beginning of a value, for an error; its type where it cannot be printed."""
    try:
        text = masked(repr(value))
    except (ValueError, RecursionError):
        # Of an integer of thousands of digits, or lists in lists.
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
