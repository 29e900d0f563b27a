"""Typed handles: state declared as Python types, `states.value("visits", int)`.

On the data path this stands between an operator's author and a backend. It mostly adds nothing: the handle of a state
without default and TTL is the backend's own. Each further option adds one thin handle around it.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, get_origin, overload

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.backend.expiry import alive
from millpond.state.backend.protocols import KeyedStateBackend, MapState, ValueState
from millpond.state.backend.sums import Sums
from millpond.state.operator.folding import Aggregate, AggregatingState, ReducingState
from millpond.state.operator.ttl_handles import TtlList, TtlMap, TtlValue
from millpond.state.operator.typed import DefaultedValue, List, Map, Value
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.key_types import given_form, key_schema
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import Serializer, msgspec_serializer, pickle_serializer
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.cached_values import CachedValues
from millpond.state.wrappers.choice import ValueCacheChoice
from millpond.suggestions import did_you_mean

T = TypeVar("T")
K = TypeVar("K")
In = TypeVar("In")
Out = TypeVar("Out")

_TtlOption = Ttl | dt.timedelta | int | None
_SerializerOption = Serializer | str | None


class States:
    """Declares the states of one operator over its backend. `declared` is called with every descriptor.

    Values are Python objects of the declared type, stored by msgspec unless `serializer` is `"pickle"` or a
    `Serializer`. `ttl` is a `Ttl`, a timedelta or a number of ms. An OptionError says what is wrong with a
    declaration: a name used twice, a type that cannot be stored, a default of another type. `cache` is a `WriteBack`
    or a `TwoLayer` in front of this state, below default and ttl, instead of the one that the options choose.

    >>> from millpond.state.spi import HeapBackend
    >>> backend = HeapBackend(range(128))
    >>> states = States(backend)
    >>> visits = states.value("visits", int, default=0)
    >>> pages = states.map("pages", str, int)
    >>> fastest = states.reducing("fastest", float, min)
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update(visits.get() + 1)
    >>> pages.put("/home", 1)
    >>> for seconds in (0.7, 0.3, 0.9):
    ...     fastest.add(seconds)
    >>> visits.get(), list(pages.items()), fastest.get(), list(states.keys("visits"))
    (1, [('/home', 1)], 0.3, ['ann'])
    """

    def __init__(self, backend: KeyedStateBackend, declared: Callable[[StateDescriptor], object] | None = None) -> None:
        self._backend = backend
        self._declared = declared
        self._descriptors: dict[str, StateDescriptor] = {}

    @overload
    def value(
        self,
        name: str,
        kind: type[T],
        *,
        ttl: _TtlOption = None,
        serializer: _SerializerOption = None,
        cache: ValueCacheChoice | None = None,
    ) -> Value[T]: ...

    @overload
    def value(
        self,
        name: str,
        kind: type[T],
        *,
        default: T | Callable[[], T],
        ttl: _TtlOption = None,
        serializer: _SerializerOption = None,
        cache: ValueCacheChoice | None = None,
    ) -> DefaultedValue[T]: ...

    def value(
        self,
        name: str,
        kind: type[Any],
        *,
        default: Any = None,
        ttl: _TtlOption = None,
        serializer: _SerializerOption = None,
        cache: ValueCacheChoice | None = None,
    ) -> Any:
        """Declare a value state. `get` returns `default`, or the result of calling it, if a key has no value.

        A default is not state: `exists()` stays False until an update.
        """
        chosen = _serializer(name, kind, serializer)
        descriptor = self._declare(name, StateKind.VALUE, chosen, ttl)
        state = self._value(descriptor, cache)
        if default is None:
            return state
        made = _DefaultValue(
            descriptor, state, _default(name, default, chosen), Sums.of_values(descriptor, self._backend.context)
        )
        if type(default) in {int, float} and default == 0:
            made.add = state.add  # it adds to 0 anyway
        return made

    def list(
        self, name: str, kind: type[T], *, ttl: _TtlOption = None, serializer: _SerializerOption = None
    ) -> List[T]:
        """Declare a list state. With a Ttl each element expires alone."""
        descriptor = self._declare(name, StateKind.LIST, _serializer(name, kind, serializer), ttl)
        if descriptor.ttl is None:
            return self._backend.list_state(descriptor)
        return TtlList(self._backend, descriptor, descriptor.ttl)

    def map(
        self,
        name: str,
        key_kind: type[K],
        value_kind: type[T],
        *,
        ttl: _TtlOption = None,
        serializer: _SerializerOption = None,
    ) -> Map[K, T]:
        """Declare a map state. With a Ttl each entry expires alone. Map keys are atomic values, or tuples of them."""
        map_key_schema = key_schema(key_kind, f"state {name!r}: the type of map keys")
        descriptor = self._declare(name, StateKind.MAP, _serializer(name, value_kind, serializer), ttl, map_key_schema)
        state: MapState = (
            self._backend.map_state(descriptor)
            if descriptor.ttl is None
            else TtlMap(self._backend, descriptor, descriptor.ttl)
        )
        # A backend's map keys are tuples already.
        return state if get_origin(key_kind) is tuple else _AtomicKeyMap(state)  # type: ignore[return-value]

    def reducing(
        self,
        name: str,
        kind: type[T],
        reduce: Callable[[T, T], T],
        *,
        ttl: _TtlOption = None,
        serializer: _SerializerOption = None,
        cache: ValueCacheChoice | None = None,
    ) -> ReducingState[T]:
        """Declare a value per key, into which every added value is reduced: `reduce(so_far, value)`."""
        state = self._value(self._declare(name, StateKind.VALUE, _serializer(name, kind, serializer), ttl), cache)
        return ReducingState(state, reduce)

    def aggregating(
        self,
        name: str,
        aggregate: Aggregate[In, Any, Out],
        accumulator_kind: Any,
        *,
        ttl: _TtlOption = None,
        serializer: _SerializerOption = None,
        cache: ValueCacheChoice | None = None,
    ) -> AggregatingState[In, Out]:
        """Declare an accumulator per key, to which values of any type are added and from which a result is read."""
        chosen = _serializer(name, accumulator_kind, serializer)
        state = self._value(self._declare(name, StateKind.VALUE, chosen, ttl), cache)
        return AggregatingState(state, aggregate)

    def keys(self, name: str) -> Iterator[Any]:
        """Yield every key that has a visible value of this state, each once: its only field, or a tuple of several.

        The current key does not change. State may be changed during the iteration. Whether keys that appear during the
        iteration are yielded is undefined.
        """
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            known = sorted(self._descriptors)
            raise OptionError(f"no state {name!r} was declared here; there are {known}{did_you_mean(name, known)}")
        ttl = descriptor.ttl
        if ttl is None or ttl.visibility == "until-cleaned":
            return (given_form(key) for _, key in self._backend.keys(name))
        return self._living_keys(name, ttl)

    def _living_keys(self, name: str, ttl: Ttl) -> Iterator[Any]:
        backend = self._backend
        for key_group in dict.fromkeys(key_group for key_group, _ in backend.keys(name)):
            cells = alive(backend.cells(name, key_group), ttl, backend.context.now_ms)
            yield from map(given_form, dict.fromkeys(cells.keys))

    def _declare(
        self,
        name: str,
        kind: StateKind,
        serializer: Serializer,
        ttl: _TtlOption,
        map_key_schema: pa.Schema | None = None,
    ) -> StateDescriptor:
        descriptor = StateDescriptor(name, kind, OBJECT_SCHEMA, map_key_schema, serializer, _lives(name, ttl))
        if name.startswith("$"):
            raise OptionError(f"state {name!r}: names that begin with $ are Millpond's own. Give it another one.")
        known = self._descriptors.get(name)
        if known is not None:
            raise OptionError(
                f"state {name!r} was declared as [{known.describe()}] and again as [{descriptor.describe()}]. "
                "Give each state of an operator its own name."
            )
        self._descriptors[name] = descriptor
        if self._declared is not None:
            self._declared(descriptor)
        return descriptor

    def _value(self, descriptor: StateDescriptor, cache: ValueCacheChoice | None) -> ValueState:
        if cache is not None:
            self._cache(descriptor, cache)
        if descriptor.ttl is None:
            return self._backend.value_state(descriptor)
        return TtlValue(self._backend, descriptor, descriptor.ttl)

    def _cache(self, descriptor: StateDescriptor, cache: ValueCacheChoice) -> None:
        """Have the backend put this cache in front of the state from here on."""
        if not isinstance(cache, ValueCacheChoice):
            raise OptionError(
                f"state {descriptor.name!r}: cache is {cache!r}; expected WriteBack(max_size=...) or "
                "TwoLayer(max_size=..., max_size_l2=...). An LRU cache is for all states: state.backend.cache = lru."
            )
        if not isinstance(self._backend, CachedValues):
            raise OptionError(
                f"state {descriptor.name!r} has a cache, and {type(self._backend).__name__} carries none. Declare it "
                "in an operator, or put CachedValues(backend) around the backend."
            )
        self._backend.cached_value_state(descriptor, cache)


class _DefaultValue:
    """A value state that returns a default if there is no value."""

    __slots__ = ("_default", "_get", "_sums", "_update_with", "add", "clear", "descriptor", "exists", "update")
    adds = "a default"

    def __init__(self, descriptor: StateDescriptor, state: ValueState, default: Callable[[], Any], sums: Sums) -> None:
        self.descriptor = descriptor
        self._default = default
        self._get = state.get
        self._update_with = state.update_with
        self._sums = sums
        self.add: Callable[[Any], Any] = self._add_to_default
        self.exists = state.exists
        self.update = state.update
        self.clear = state.clear

    def get(self) -> Any:
        value = self._get()
        return self._default() if value is None else value

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        return self._update_with(lambda value: change(self._default() if value is None else value))

    def _add_to_default(self, number: Any) -> Any:
        return self.update_with(self._sums.adding(number))


class _AtomicKeyMap:
    """A map state whose map keys are given as single values, not as tuples of one."""

    __slots__ = ("_state", "clear", "exists")

    def __init__(self, state: MapState) -> None:
        self._state = state
        self.exists = state.exists
        self.clear = state.clear

    def get(self, map_key: Any) -> Any:
        return self._state.get((map_key,))

    def contains(self, map_key: Any) -> bool:
        return self._state.contains((map_key,))

    def put(self, map_key: Any, value: Any) -> None:
        self._state.put((map_key,), value)

    def remove(self, map_key: Any) -> None:
        self._state.remove((map_key,))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((map_key[0], value) for map_key, value in self._state.items())


def _default(name: str, default: Any, serializer: Serializer) -> Callable[[], Any]:
    """Return a function that makes the default: the user's own, or one that returns the value, copied if mutable.

    A class makes objects of one type, so its default is checked once. The result of another function is checked each
    time.
    """

    def checked(value: Any) -> Any:
        try:
            return serializer.check(value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"the default of state {name!r} is not of its type: {error}.") from error

    if not callable(default):
        return partial(serializer.copy, checked(default))
    if not isinstance(default, type):
        return lambda: checked(default())
    try:
        made = default()
    except Exception as error:
        raise OptionError(
            f"the default of state {name!r} is the class {default.__name__}, which cannot be called without arguments: "
            f"{type(error).__name__}: {error}. Give a value, or a function that makes one."
        ) from error
    checked(made)
    make: Callable[[], Any] = default
    return make


def _lives(name: str, ttl: _TtlOption) -> Ttl | None:
    try:
        return None if ttl is None else Ttl.of(ttl)
    except OptionError as error:
        raise OptionError(f"state {name!r}: {error}") from error


def _serializer(name: str, kind: Any, serializer: _SerializerOption) -> Serializer:
    if isinstance(serializer, Serializer):
        return serializer
    if serializer == "pickle":
        return pickle_serializer()
    if serializer in {None, "msgspec"}:
        try:
            return msgspec_serializer(kind)
        except OptionError as error:
            raise OptionError(f"state {name!r}: {error}") from error
    raise OptionError(
        f"state {name!r}: serializer is {serializer!r}; expected 'msgspec', 'pickle' or a Serializer "
        "(see user_serializer)."
    )
