"""API keys: who may call the service.

Place on the data path: checked before a body is read. A caller sends `Authorization: Bearer KEY`.
Invariant: the time that a check takes says nothing about a key. Digests of equal length are compared in
constant time, and the given key is always compared with all of them.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from millpond.errors import OptionError

_MIN_LENGTH = 16


class ApiKeys:
    """The keys that give access to the service. Without any key everybody has access.

    >>> keys = ApiKeys(["a-key-of-some-length"])
    >>> keys.allow(b"Bearer a-key-of-some-length"), keys.allow(b"Bearer another"), keys.allow(None)
    (True, False, False)
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = list(keys)
        for number, key in enumerate(given, 1):
            if len(key) < _MIN_LENGTH or not key.isascii() or key != key.strip():
                raise OptionError(
                    f"API key {number} cannot be used; a key has at least {_MIN_LENGTH} characters of ASCII, without "
                    "spaces around it."
                )
        self._digests = [_digest(key.encode()) for key in given]

    @property
    def required(self) -> bool:
        """Whether a caller must have a key."""
        return bool(self._digests)

    def allow(self, authorization: bytes | None) -> bool:
        """Whether the value of an `Authorization` header has one of the keys."""
        if not self._digests:
            return True
        scheme, _, key = (authorization or b"").partition(b" ")
        given = _digest(key.strip())
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found and scheme.lower() == b"bearer"


def read_api_keys(path: Path) -> list[str]:
    """Read the keys from a file, one on each line. Empty lines and lines that begin with # are skipped.

    Raises:
        OptionError: the file cannot be read or has no key.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the file of API keys {path} cannot be read: {error}.") from error
    stripped = map(str.strip, lines)
    keys = [line for line in stripped if line and not line.startswith("#")]
    if not keys:
        raise OptionError(f"the file of API keys {path} has no key; write one a line, or leave the option out.")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
