"""How Python objects become bytes: msgspec unless the user asks for pickle or brings a pair of functions.

A `Serializer` is data, so that it can be compared: two are the same when their `text` is, which is
what a checkpoint remembers of it (`msgspec int`).
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
    """Objects of one state to bytes and back.

    Attributes:
        text: what it does, in the words that a checkpoint and an error show: `msgspec dict[str, int]`.
        raw: whether it only hands bytes on, as for a restored state whose type nobody declared.
        dumps: a checked object as bytes.
        loads: the inverse.
        check: the object as it is kept, where it is mutable another than the one given; raises TypeError or
            ValueError, saying what was expected, where it could not be stored or would not come back equal.
        exactly: makes a faster `check`, which lets objects of exactly the type pass at once and hands the others to the
            function given; None where there is no such test.
        mutable: whether the objects can be changed in place.
        copy: a deep copy.
        number: int or float, where the objects are of that very type and can be added up; else None.
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
    """Hands on the bytes of a state whose type is not known here, under the text it was written with."""
    return Serializer(text, raw=True)


def msgspec_serializer(kind: Any) -> Serializer:
    """Objects of a type that msgspec knows: builtins, dataclasses, Structs, enums, dates, and their unions.

    An object passes as it is if it comes back as it is. One that comes back equal but of other types (a
    subclass, an integer for a float, a time in another zone) is kept as what comes back, and so is every
    collection. The rest is refused.

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
        # What can be changed in place is kept as another object than the caller's, who may go on changing that.
        check=by_round_trip if mutable else compiled(info, by_round_trip),
        exactly=None if mutable else partial(compiled, info),
        mutable=mutable,
        copy=(lambda value: decode(encode(value))) if mutable else _itself,
        number=kind if kind is int or kind is float else None,
    )


def pickle_serializer() -> Serializer:
    """Any object that pickles. Only for those who ask: a pickle runs code when it is read."""
    return _of_pair("pickle", partial(pickle.dumps, protocol=_PICKLE_PROTOCOL), pickle.loads)


def user_serializer(name: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Serializer:
    """A user's own pair of functions, under a name that checkpoints remember.

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
            # Kept is another object than the caller's, who may go on changing that.
            return loads(data)
        except Exception as error:
            raise ValueError(
                f"expected a value that the serializer {name!r} can read again, got {type(value).__name__} "
                f"{_shown(value)}: {type(error).__name__}: {error}"
            ) from error

    # Whoever can read what it wrote can copy so; not everything that pickles has a `__deepcopy__` to rely on.
    return Serializer(name, dumps=dumps, loads=loads, check=check, mutable=True, copy=lambda value: loads(dumps(value)))


def _refuse_none(value: Any, expected: str) -> None:
    if value is None:
        raise TypeError(f"expected {expected}, got None: a state without a value is absent. Use clear()")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _itself(value: Any) -> Any:
    return value
