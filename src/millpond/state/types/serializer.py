"""Encodes Python objects: with msgspec, unless the user chooses pickle or brings a pair of functions.

A `Serializer` is data that can be compared: two are the same if their `text` is. A checkpoint stores that text
(`msgspec int`).
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import msgspec.inspect

from millpond.errors import OptionError
from millpond.state.types.exact_objects import compiled, same
from millpond.state.types.object_types import is_mutable, text_of, unknown_in

_PICKLE_PROTOCOL = 5
_SHOWN_CHARACTERS = 200
_OTHER_SERIALIZERS = "Use serializer='pickle', or a pair of functions of your own: user_serializer(name, dumps, loads)."


@dataclass(frozen=True)
class Serializer:
    """Encodes and decodes the objects of one state.

    Attributes:
        text: what it does, in the words that a checkpoint and an error show: `msgspec dict[str, int]`.
        raw: whether it only passes bytes on, as for a restored state whose type nobody declared.
        dumps: encodes a checked object.
        loads: the inverse.
        check: returns the object as it is kept, which is another one if it is mutable. If it could not be stored, or
            would not come back equal, raises TypeError or ValueError, saying what was expected.
        exactly: makes a faster `check`, which lets objects of exactly the type pass at once and gives others to the
            function it is given; None if there is no such test.
        mutable: whether the objects can be changed in place.
        copy: makes a deep copy.
        number: int or float, if the objects are of that very type and can be added up; else None.
    """

    text: str
    raw: bool = False
    dumps: Callable[[Any], bytes] = field(compare=False, default=bytes)
    loads: Callable[[bytes], Any] = field(compare=False, default=bytes)
    check: Callable[[Any], Any] = field(compare=False, default=bytes)
    exactly: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] | None = field(compare=False, default=None)
    mutable: bool = field(compare=False, default=False)
    copy: Callable[[Any], Any] = field(compare=False, default=bytes)
    number: type | None = field(compare=False, default=None)


def raw_serializer(text: str) -> Serializer:
    """Return a serializer that passes bytes on, for a state whose type is unknown here. `text` is the writer's."""
    return Serializer(text, raw=True)


def msgspec_serializer(kind: Any) -> Serializer:
    """Return a serializer for a type that msgspec knows: builtins, dataclasses, Structs, enums, dates and unions.

    An object that comes back unchanged is kept as it is. If it comes back equal but of other types (a subclass, an
    integer for a float, a time in another zone), the result is kept instead. So it is for every collection. Other
    objects are rejected.

    >>> numbers = msgspec_serializer(list[float])
    >>> numbers.text, numbers.check([1.5, 2]), numbers.loads(numbers.dumps([1.5]))
    ('msgspec list[float]', [1.5, 2.0], [1.5])
    """
    try:
        info = msgspec.inspect.type_info(kind)
        decode = msgspec.msgpack.Decoder(kind).decode
    except (TypeError, NameError) as error:
        raise OptionError(f"{kind!r} is no type that msgspec can write: {error}. {_OTHER_SERIALIZERS}") from error
    unknown = unknown_in(info)
    if unknown is not None:
        raise OptionError(f"{kind!r} is no type that msgspec can write, because of {unknown}. {_OTHER_SERIALIZERS}")
    if isinstance(info, msgspec.inspect.NoneType):
        raise OptionError("None is no value: a state without a value is absent. Declare the type of its values.")
    encode, text = msgspec.msgpack.Encoder().encode, text_of(info)

    def by_round_trip(value: Any) -> Any:
        _refuse_none(value, text)
        try:
            back = decode(encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError, AttributeError) as error:
            raise TypeError(f"expected {text}, got {type(value).__name__} {_shown(value)}: {error}") from error
        if not same(back, value):
            raise ValueError(
                f"expected {text}, got {type(value).__name__} {_shown(value)}, which would come back as {_shown(back)}"
            )
        return back

    mutable = is_mutable(info)
    return Serializer(
        f"msgspec {text}",
        dumps=encode,
        loads=decode,
        # A mutable object is kept as another object than the caller's, which the caller may go on changing.
        check=by_round_trip if mutable else compiled(info, by_round_trip),
        exactly=None if mutable else partial(compiled, info),
        mutable=mutable,
        copy=(lambda value: decode(encode(value))) if mutable else _itself,
        number=kind if kind is int or kind is float else None,
    )


def pickle_serializer() -> Serializer:
    """Return a serializer for any object that pickles. Only on request: a pickle runs code when it is read."""
    return _of_pair("pickle", partial(pickle.dumps, protocol=_PICKLE_PROTOCOL), pickle.loads)


def user_serializer(name: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Serializer:
    """Return a serializer of a user's own pair of functions, under a name that checkpoints store.

    >>> texts = user_serializer("latin-1", lambda text: text.encode("latin-1"), lambda data: data.decode("latin-1"))
    >>> texts.loads(texts.dumps("é"))
    'é'
    """
    if not name or name == "pickle" or name.startswith("msgspec"):
        raise OptionError(f"a serializer of your own is named {name!r}; give it a name that is not Millpond's own.")
    return _of_pair(name, dumps, loads)


def _of_pair(name: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Serializer:
    def check(value: Any) -> Any:
        _refuse_none(value, f"a value for the serializer {name!r}")
        try:
            data = dumps(value)
        except Exception as error:
            raise TypeError(
                f"expected a value that the serializer {name!r} can write, got {type(value).__name__} "
                f"{_shown(value)}: {type(error).__name__}: {error}"
            ) from error
        if type(data) is not bytes:
            raise TypeError(f"the serializer {name!r} must give bytes, and gave {type(data).__name__}")
        try:
            # Another object than the caller's is kept, since the caller may go on changing that one.
            return loads(data)
        except Exception as error:
            raise ValueError(
                f"expected a value that the serializer {name!r} can read again, got {type(value).__name__} "
                f"{_shown(value)}: {type(error).__name__}: {error}"
            ) from error

    # A copy by the pair itself always works. Not everything that pickles has a reliable `__deepcopy__`.
    return Serializer(name, dumps=dumps, loads=loads, check=check, mutable=True, copy=lambda value: loads(dumps(value)))


def _refuse_none(value: Any, expected: str) -> None:
    if value is None:
        raise TypeError(f"expected {expected}, got None: a state without a value is absent. Use clear()")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _itself(value: Any) -> Any:
    return value
