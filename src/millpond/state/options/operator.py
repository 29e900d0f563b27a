"""The options of keyed state, by Flink's names, parsed once and checked together.

Invariant: every option that was given takes effect. An unknown name, a value of the wrong form or out of range, and an
option that the chosen backend would ignore are all reported in one error, before the first record. Names and choices
are read in any case. A size is a number with a unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.errors import OptionError
from millpond.options import Known, named, parsed, place, refuse_problems
from millpond.state.options.cache import CACHE_OPTIONS, chosen_cache
from millpond.state.options.registry import BackendFactory, backend_name, registered_backends
from millpond.state.wrappers.choice import CacheChoice, CacheHooks


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Where keyed state is held, what of it is cached, and where checkpoints go.

    Attributes:
        backend: the name under which the backend is registered.
        cache: the cache in front of the backend (`Lru`) or of each value state (`WriteBack`, `TwoLayer`); or None.
        checkpoint_storage: a path or URI; None if the caller that runs the operator decides.
        settings: the backend's own settings, its defaults unless given (`RocksDbSettings` for RocksDB).
        factory: creates the backend; the registered one unless given.

    >>> StateOptions.parse({"state.backend.type": "RocksDB", "STATE.backend.cache.max-entries-num": "1000"}).cache
    Lru(max_entries=1000, max_bytes=None, hit_rate_curve=False)
    >>> StateOptions.parse({"state.backend.typ": "heap", "state.backend.cache.max-bytes": "many"})
    Traceback (most recent call last):
    millpond.errors.OptionError: state options:
    - 'state.backend.typ' is unknown; did you mean 'state.backend.type'?
    - 'state.backend.cache.max-bytes': expected a size such as '64mb', in b, kb, mb, gb or tb, got 'many'
    """

    backend: str = "heap"
    cache: CacheChoice | None = None
    checkpoint_storage: str | None = None
    settings: Any = None
    factory: BackendFactory = field(default=None, repr=False, compare=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        # Options sent to another process carry both, so the backend need not be registered there.
        if self.factory is None or self.settings is None:
            try:
                registered = registered_backends()[backend_name(self.backend)]
            except ValueError as error:
                raise OptionError(f"StateOptions(backend={self.backend!r}): expected {error}.") from error
            if self.factory is None:
                object.__setattr__(self, "factory", registered.factory)
            if self.settings is None:
                object.__setattr__(self, "settings", registered.settings())

    @property
    def local_dir(self) -> Path | None:
        """The folder in which the backend's folders are created, if its settings have such a `local_dir`."""
        found: Path | None = getattr(self.settings, "local_dir", None)
        return found

    @classmethod
    def parse(cls, options: "Mapping[str, Any] | StateOptions", *, hooks: CacheHooks | None = None) -> "StateOptions":
        """Parse options from their names and values. The `OptionError` lists everything that is wrong.

        `hooks` are those of the `write-back` or `two-layer` cache that the options choose.
        """
        if isinstance(options, StateOptions):
            if hooks is not None:
                raise OptionError(
                    "StateOptions have the hooks of their cache in it: WriteBack(max_size=..., hooks=...)."
                )
            return options
        problems: list[str] = []
        backends = registered_backends()
        own = {option: meaning for kind in backends.values() for option, meaning in kind.options.items()}
        given = named(options, {**_OPTIONS, **CACHE_OPTIONS, **own}, problems)
        values = parsed({name: value for name, value in given.items() if name in _OPTIONS}, _OPTIONS, problems)
        backend = values.get("backend", "heap")
        # If the backend itself is wrong, it is unknown which options it ignores.
        if "backend" in values or "state.backend.type" not in given:
            problems.extend(
                f"{name!r} has no effect with state.backend.type = {backend}; remove it or choose {owner}"
                for owner, kind in backends.items()
                for name in given
                if name in kind.options and owner != backend
            )
        settings = _settings(backend, {name: value for name, value in given.items() if name in own}, own, problems)
        cache = chosen_cache(given, hooks, problems)
        refuse_problems("state options", problems)
        return cls(**values, cache=cache, settings=settings)


def _settings(backend: str, given: Mapping[str, Any], known: Known, problems: list[str]) -> Any:
    """Return the backend's own settings; None if a problem prevents it."""
    wrong = len(problems)
    fields = parsed(given, known, problems)
    if len(problems) > wrong or not given.keys() <= registered_backends()[backend].options.keys():
        return None
    try:
        return registered_backends()[backend].settings(**fields)
    except ValueError as error:
        problems.append(f"'state.backend.{backend}.*': {error}")
        return None


_OPTIONS: Known = {
    "state.backend.type": ("backend", backend_name),
    "state.checkpoint-storage": ("checkpoint_storage", place),
}
