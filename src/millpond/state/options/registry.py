"""State backends by name: the three that are here, and those that users register.

A backend's factory travels with the options of an operator to wherever its shards live, so a backend
that is registered in a driver needs no registering elsewhere: a function of an installed module, or one
that cloudpickle can take along, will do. So do the settings that its options were parsed into.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from millpond.errors import OptionError
from millpond.options import Known
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.heap.backend import HeapBackend
from millpond.state.rocksdb.options import ROCKSDB_OPTIONS, RocksDbSettings
from millpond.state.spillable.options import SPILLABLE_OPTIONS, SpillableSettings
from millpond.suggestions import suggestion

BackendFactory: TypeAlias = "Callable[[Any, range, Path], KeyedStateBackend]"
"""Makes a backend for some key groups, from the operator's `StateOptions`, whose `settings` are the backend's own.

The folder, which need not exist, is the backend's alone: it makes it where it has files to keep, and removes it when it
is closed."""

_RESERVED = frozenset({"type", "cache"})
"""What stands after `state.backend.` in options that belong to no backend."""


@dataclass(frozen=True, slots=True)
class RegisteredBackend:
    """A backend that can be named in options.

    Attributes:
        factory: makes it.
        options: the names of its own options in lower case, each with the field it fills and a parser.
        settings: makes of the fields that were given what the factory finds as `options.settings`.
    """

    factory: BackendFactory
    options: Known = field(default_factory=dict)
    settings: Callable[..., Any] = dict


def register_backend(
    name: str,
    factory: BackendFactory,
    *,
    options: Known | None = None,
    settings: Callable[..., Any] = dict,
) -> None:
    """Make a backend known as `state.backend.type = name`, in any case.

    Args:
        name: of the backend.
        factory: makes it for some key groups.
        options: the backend's own options. Each name, which begins with `state.backend.NAME.`, has the field that it
            fills and a parser, whose ValueError says what it expects (`millpond.options` has parsers of counts, sizes
            and durations).
        settings: called with the fields that were given, as keyword arguments, it makes the `settings` of the
            options that the factory gets: a frozen dataclass with the defaults, say. A ValueError says what is wrong
            with the fields together. It is `dict` unless given.

    Raises:
        OptionError: the name is taken, or an option's name does not begin with it. What the factory makes is checked
            when it is opened: an OptionError names the members of `KeyedStateBackend` that it lacks.

    >>> register_backend("Heap", lambda options, key_groups, folder: HeapBackend(key_groups))
    Traceback (most recent call last):
    millpond.errors.OptionError: a state backend 'heap' is registered already; give this one another name.
    """
    lower = name.strip().lower()
    if not lower or lower in _RESERVED:
        raise OptionError(
            f"a state backend needs a name that is not empty, nor one of {sorted(_RESERVED)}; got {name!r}."
        )
    if lower in _BACKENDS:
        raise OptionError(f"a state backend {lower!r} is registered already; give this one another name.")
    own = {option.strip().lower(): meaning for option, meaning in (options or {}).items()}
    foreign = [option for option in own if not option.startswith(f"state.backend.{lower}.")]
    if foreign:
        raise OptionError(
            f"the options {foreign} of state backend {lower!r}: names begin with 'state.backend.{lower}.'."
        )
    _BACKENDS[lower] = RegisteredBackend(factory, own, settings)


def backend_name(value: Any) -> str:
    """The name of a registered backend, read in any case; the parser of `state.backend.type`."""
    lower = str(value).strip().lower()
    if lower not in _BACKENDS:
        near = suggestion(lower, _BACKENDS)
        meant = "" if near is None else f" (did you mean {near!r}?)"
        raise ValueError(f"a registered backend, one of {', '.join(_BACKENDS)}{meant}")
    return lower


def registered_backends() -> Mapping[str, RegisteredBackend]:
    """Every backend that can be named."""
    return _BACKENDS


def _heap(_options: Any, key_groups: range, _folder: Path) -> KeyedStateBackend:
    return HeapBackend(key_groups)


def _rocksdb(options: Any, key_groups: range, folder: Path) -> KeyedStateBackend:
    from millpond.state.rocksdb.backend import RocksDbBackend

    settings: RocksDbSettings = options.settings
    return RocksDbBackend(
        key_groups,
        folder,
        write_buffer_bytes=settings.write_buffer_bytes,
        block_cache_bytes=settings.block_cache_bytes,
    )


def _spillable(options: Any, key_groups: range, folder: Path) -> KeyedStateBackend:
    from millpond.state.spillable.backend import SpillableBackend

    return SpillableBackend(key_groups, folder, options.settings)


_BACKENDS: dict[str, RegisteredBackend] = {
    "heap": RegisteredBackend(_heap),
    "rocksdb": RegisteredBackend(_rocksdb, ROCKSDB_OPTIONS, RocksDbSettings),
    "spillable": RegisteredBackend(_spillable, SPILLABLE_OPTIONS, SpillableSettings),
}
