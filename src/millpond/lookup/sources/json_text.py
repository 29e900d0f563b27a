"""Decodes the JSON of a source, or raises a `DataError`.

Data from a source is not trusted: it may not be text, be nested deeper than Python can read, or have numbers that no
column can hold.
"""

from typing import Any

import msgspec

from millpond.errors import DataError
from millpond.masking import masked

_SHOWN_CHARACTERS = 200


def decoded_json(where: str, text: bytes) -> Any:
    """Decode JSON.

    Args:
        where: the source's name in errors.
        text: the JSON.

    Raises:
        DataError: it is not JSON, or nested too deeply.

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
    """Return the beginning of a value's text, for an error; its type if the value cannot be printed."""
    try:
        text = masked(repr(value))
    except (ValueError, RecursionError):
        # An integer of thousands of digits, or deeply nested lists.
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
