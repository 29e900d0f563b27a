"""What King's two caches do alike: they are used like a value state, and called by the backend that carries them.

A cache inherits from `CachedState` and says how it finds the entry of a key (`_entry`), how it keeps one (`_put`) and
which layers it has. All else is the same for both: what is dirty is written once, the end of a version lets go of what
a caller may hold, and a rollback empties every layer.
"""

from collections.abc import Callable
from typing import Any, Unpack

from millpond.cache import Cache
from millpond.state.backend.protocols import Cells, ValueState
from millpond.state.backend.sums import PlainValue
from millpond.state.wrappers.king.state_access import Carrier, Entry, HitTracker, WatchedState, Watching, Where


class CachedState(PlainValue):
    """A value state behind a cache.

    Who inherits this sets `_layers`, and `_put`, which keeps a key's entry; it attaches itself to the backend last.
    """

    _layers: tuple[Cache[Where, Entry], ...]
    _put: Callable[[Where, Entry], object]

    def __init__(
        self, backend: Carrier, state: ValueState, hit_tracker: HitTracker | None, **watching: Unpack[Watching]
    ) -> None:
        self.descriptor = getattr(state, "descriptor", None)
        self._below = WatchedState(backend, state, **watching)
        self._sums = self._below.sums
        self._context = backend.context
        self._hit_tracker = hit_tracker

    def _entry(self) -> Entry:
        """The current key's entry, which is read of the state where no layer has it."""
        raise NotImplementedError

    def exists(self) -> bool:
        """Whether the current key has a value. A read like `get`."""
        return self._entry().value is not None

    def get(self) -> Any:
        """The current key's value, or None."""
        return self._below.lend(self._entry())

    def update(self, value: Any) -> None:
        """Set the current key's value; it is written when the key leaves its layer, or at the next checkpoint."""
        where = self._below.require_key()
        self._put(where, self._below.updated(where, value))

    def clear(self) -> None:
        """Forget the current key's value; written as an update is."""
        where = self._below.require_key()
        self._put(where, self._below.cleared(where))

    def update_all_states(self) -> None:
        """Write each dirty entry to the state, once, and keep it, clean. The current key stays the same.

        Raises whatever the state or a hook raises; entries that were not written yet stay dirty.
        """
        self._below.write_dirty()

    def flush(self) -> None:
        """The backend's call at the beginning of a commit: `update_all_states`, and the version ends."""
        self.update_all_states()
        self._below.end_version(*self._layers)

    def forget(self) -> None:
        """The backend's call when the state was undone or restored: every entry goes, dirty or not."""
        for layer in self._layers:
            layer.clear()
        self._below.dirty.clear()
        self._below.end_version()

    def write_key(self, where: Where) -> None:
        """Write one key's entry to the state, if it is dirty, and keep it, clean."""
        self._below.write_key(where)

    def overwritten(self, cells: Cells) -> None:
        """The backend's call when it was given cells of this state to put or delete: they are cached no more."""
        for where in zip(cells.key_groups, cells.keys, strict=True):
            self._below.dirty.pop(where, None)
            self._below.let_go(where)
            for layer in self._layers:
                layer.invalidate(where)

    def size(self) -> int:
        """How many keys are cached, in all layers."""
        return sum(map(len, self._layers))

    def dirty_size(self) -> int:
        """How many keys the state does not have as they are cached: what a checkpoint would write now."""
        return len(self._below.dirty)
