"""State backends by name: the three built-in ones, and those that users register.

A backend's factory is sent with an operator's options to the processes that hold its shards. So a backend that is
registered in a driver need not be registered elsewhere. The factory is a function of an installed module, or one that
cloudpickle can serialize. The settings that the options were parsed into are sent the same way.
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
"""Creates a backend for some key groups, from the operator's `StateOptions`. Their `settings` are the backend's own.

The folder belongs to the backend alone and need not exist. The backend creates it if it has files to keep, and removes
it when it is closed."""

_RESERVED = frozenset({"type", "cache"})
"""Names after `state.backend.` that no backend can have, because they begin options of no backend."""


@dataclass(frozen=True, slots=True)
class RegisteredBackend:
    """A backend that can be named in options.

    Attributes:
        factory: creates the backend.
        options: the names of its own options in lower case, each with the field it fills and a parser.
        settings: turns the fields that were given into what the factory finds as `options.settings`.
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
        factory: creates the backend for some key groups.
        options: the backend's own options. Each name begins with `state.backend.NAME.`, and has the field that it fills
            and a parser. The parser's ValueError says what it expects (`millpond.options` has parsers of counts, sizes
            and durations).
        settings: called with the fields that were given, as keyword arguments. It returns the `settings` of the
            options that the factory gets, such as a frozen dataclass with the defaults. Its ValueError says what is
            wrong with the fields together. The default is `dict`.

    Raises:
        OptionError: the name is taken, or an option's name does not begin with it. The backend that the factory
            creates is checked when it is opened: an OptionError then names the members of `KeyedStateBackend` it lacks.

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
    """Return the name of a registered backend, read in any case. This is the parser of `state.backend.type`."""
    lower = str(value).strip().lower()
    if lower not in _BACKENDS:
        near = suggestion(lower, _BACKENDS)
        meant = "" if near is None else f" (did you mean {near!r}?)"
        raise ValueError(f"a registered backend, one of {', '.join(_BACKENDS)}{meant}")
    return lower


def registered_backends() -> Mapping[str, RegisteredBackend]:
    """Return every backend that can be named."""
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
