"""How Python objects become bytes: msgspec unless the user asks for pickle or brings a pair of functions.

A `Serializer` is data, so that it can be compared: two are the same when their `text` is, which is
what a checkpoint remembers of it (`msgspec int`).
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True)
class Serializer:
    """Objects of one state to bytes and back.

    Attributes:
        text: what it does, in the words that a checkpoint and an error show: `msgspec dict[str, int]`.
        raw: whether it only hands bytes on, as for a restored state whose type nobody declared.
        dumps: a checked object as bytes.
        loads: the inverse.
        check: the object as it is kept; raises TypeError or ValueError, saying what was expected, where it
            could not be stored or would not come back equal.
        mutable: whether the objects can be changed in place.
        copy: a deep copy.
    """

    text: str
    raw: bool = False
    dumps: Callable[[Any], bytes] = field(compare=False, default=bytes)
    loads: Callable[[bytes], Any] = field(compare=False, default=bytes)
    check: Callable[[Any], Any] = field(compare=False, default=bytes)
    mutable: bool = field(compare=False, default=False)
    copy: Callable[[Any], Any] = field(compare=False, default=bytes)


def raw_serializer(text: str) -> Serializer:
    """Hands on the bytes of a state whose type is not known here, under the text it was written with."""
    return Serializer(text, raw=True)


def msgspec_serializer(kind: Any) -> Serializer:
    """Objects of a type that msgspec knows: builtins, dataclasses, Structs, enums, dates, and their unions."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode

    def check(value: Any) -> Any:
        if value is None:
            raise TypeError("expected a value, got None: a state without a value is absent. Use clear().")
        back = decode(encode(value))
        if back != value:
            raise ValueError(f"expected {kind}, got {value!r}.")
        return value

    return Serializer(
        f"msgspec {getattr(kind, '__name__', kind)}",
        dumps=encode,
        loads=decode,
        check=check,
        mutable=kind not in {int, str, float, bool, bytes},
        copy=copy.deepcopy,
    )


def pickle_serializer() -> Serializer:
    """Any object that pickles. Only for those who ask: a pickle runs code when it is read."""
    return user_serializer("pickle", pickle.dumps, pickle.loads)


def user_serializer(name: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Serializer:
    """A user's own pair of functions, under a name that checkpoints remember."""

    def check(value: Any) -> Any:
        if value is None:
            raise TypeError("expected a value, got None: a state without a value is absent. Use clear().")
        dumps(value)
        return value

    return Serializer(name, dumps=dumps, loads=loads, check=check, mutable=True, copy=copy.deepcopy)
