"""The seal of a checkpoint to which others could write: a keyed MAC around each manifest and segment.

Checksums find accidents. Whoever can write to a bucket can also correct the checksums. Nobody can make a valid seal
without the key. A sealed record is

    magic "MPMS" | format version, 1 byte | 3 zero bytes | key id, 8 bytes | MAC, 32 bytes | the record

The MAC is keyed BLAKE2b [1] over what the record is (`segment 7`, say) and its bytes. So no record can be put in
another's place; and a manifest names its segments by number and checksum. The key id is a hash of the key: it tells a
wrong key from an altered record.

A seal does not reveal that a whole checkpoint was replaced by an earlier one. Use one key for one query.

1. RFC 7693, "The BLAKE2 Cryptographic Hash and Message Authentication Code (MAC)"; keyed mode, section 2.9.
"""

import hashlib
import hmac
import struct

from millpond.errors import CorruptionError, OptionError

_MAGIC = b"MPMS"
_VERSION = 1
_RESERVED = bytes(3)
_HEADER = struct.Struct("<4sB3s8s32s")
_MAC_PERSON, _ID_PERSON = b"millpond seal", b"millpond key id"
_LEAST_KEY_BYTES, _MOST_KEY_BYTES = 16, 64

SEAL_BYTES = _HEADER.size
"""The bytes that a seal adds to a record."""


class Seal:
    """A key that seals and verifies records. Pickling includes the key; `repr` never shows it.

    Args:
        key: 16 to 64 random bytes, such as `secrets.token_bytes(32)`.

    Raises:
        OptionError: the key is not bytes, too short or too long.

    >>> seal = Seal(bytes(range(32)))
    >>> seal
    Seal(key_id='a7d566072e41b9c0')
    >>> seal.opened(seal.closed(b"state", "segment 7"), "segment 7", "segment 7 of shard 0")
    b'state'
    >>> seal.opened(seal.closed(b"state", "segment 7"), "segment 8", "segment 8 of shard 0")
    Traceback (most recent call last):
    millpond.errors.CorruptionError: segment 8 of shard 0 does not match its seal: it was altered, or put in another's \
place, by somebody who does not have the key. Nothing was taken from it. Restore an earlier version of the checkpoint \
or start from a savepoint.
    """

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or not _LEAST_KEY_BYTES <= len(key) <= _MOST_KEY_BYTES:
            got = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__}"
            raise OptionError(
                f"seal: expected a key of {_LEAST_KEY_BYTES} to {_MOST_KEY_BYTES} random bytes, such as "
                f"secrets.token_bytes(32), got {got}."
            )
        self._key = key
        self._id = hashlib.blake2b(key=key, digest_size=8, person=_ID_PERSON).digest()

    @staticmethod
    def of(key: "bytes | Seal | None") -> "Seal | None":
        """Return the seal of a key; None if there is no key."""
        return key if key is None or isinstance(key, Seal) else Seal(key)

    @property
    def key_id(self) -> str:
        """Tells the key from others without revealing it."""
        return self._id.hex()

    def __repr__(self) -> str:
        return f"Seal(key_id={self.key_id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seal) and hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self._id)

    def mac(self, data: bytes | memoryview, what: str) -> bytes:
        """Return the MAC of a record's bytes, and of what the record is."""
        place = what.encode()
        found = hashlib.blake2b(len(place).to_bytes(8, "big"), key=self._key, digest_size=32, person=_MAC_PERSON)
        found.update(place)
        found.update(data)
        return found.digest()

    def closed(self, data: bytes | memoryview, what: str) -> bytes:
        """Return a record in its seal. Opening it needs the same `what`."""
        return b"".join((_HEADER.pack(_MAGIC, _VERSION, _RESERVED, self._id, self.mac(data, what)), data))

    def opened(self, data: bytes | memoryview, what: str, name: str) -> bytes:
        """Verify a seal and return its record. Errors call it `name`.

        Raises:
            OptionError: it is sealed with another key.
            CorruptionError: it is not sealed, or was altered.
        """
        if not is_sealed(data):
            raise CorruptionError(
                f"{name} is not sealed, and a seal is asked for: it was written without seal=, or by somebody who does "
                "not have the key. Nothing was taken from it. To seal what was written without one, make a savepoint "
                "with savepoint_seal=, and begin a new query with it."
            )
        if len(data) < SEAL_BYTES:
            raise CorruptionError(f"{name} has {len(data)} bytes, fewer than its seal of {SEAL_BYTES}. {_MEND}")
        _, version, reserved, key_id, mac = _HEADER.unpack_from(data)
        if version != _VERSION or reserved != _RESERVED:
            raise CorruptionError(
                f"{name} has a seal of format version {version}; this Millpond reads versions up to {_VERSION}. "
                "Use the release that wrote it, or a later one."
            )
        if key_id != self._id:
            raise OptionError(
                f"{name} is sealed with the key {key_id.hex()}, and seal= has the key {self.key_id}. Nothing was taken "
                "from it. Give the key that it was written with."
            )
        record = memoryview(data)[SEAL_BYTES:]
        if not hmac.compare_digest(mac, self.mac(record, what)):
            raise CorruptionError(
                f"{name} does not match its seal: it was altered, or put in another's place, by somebody who does not "
                f"have the key. {_MEND}"
            )
        return bytes(record)


_MEND = "Nothing was taken from it. Restore an earlier version of the checkpoint or start from a savepoint."


def is_sealed(data: bytes | memoryview) -> bool:
    """Return whether bytes begin like a sealed record."""
    return bytes(data[: len(_MAGIC)]) == _MAGIC


def closed(seal: Seal | None, data: bytes, what: str) -> bytes:
    """Return a record as it is stored: sealed, if there is a seal."""
    return data if seal is None else seal.closed(data, what)


def opened(seal: Seal | None, data: bytes, what: str, name: str) -> bytes:
    """Return the record that `closed` was given. Raises as `Seal.opened`, and OptionError if a key is missing."""
    if seal is not None:
        return seal.opened(data, what, name)
    if is_sealed(data):
        raise OptionError(
            f"{name} is sealed with a key. Nothing was taken from it. Give the key, as in StateConfig(seal=key) or "
            "read_state(..., seal=key)."
        )
    return data


MANIFEST = "manifest"
"""The `what` of a shard's manifest."""


def segment(segment_id: int) -> str:
    """Return the `what` of a segment."""
    return f"segment {segment_id}"
