"""What King's two caches share: they are used like a value state, and flushed by the backend that carries them.

A cache inherits from `CachedState` and defines which layers it has, how it keeps the entry of a key (`_put`), and where
it looks for one that the first layer lacks (`_missed`). The rest is the same for both: a dirty entry is written once,
the end of a version drops what a caller may still hold, and a rollback empties every layer.
"""

from collections.abc import Callable
from typing import Any, Unpack

from millpond.cache import Cache
from millpond.state.backend.protocols import Cells, ValueState
from millpond.state.backend.sums import PlainValue
from millpond.state.wrappers.king.state_access import Carrier, Entry, HitTracker, WatchedState, Watching, Where


class CachedState(PlainValue):
    """A value state behind a cache.

    A subclass sets its first layer, `_layers`, and `_put`, which keeps a key's entry. It attaches itself to the backend
    last.
    """

    _l1: Cache[Where, Entry]
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
        context = self._context
        where = (context.key_group, context.key)
        entry = self._l1.get(where)
        if self._hit_tracker is not None:
            self._hit_tracker(entry is not None)
        return self._missed(where) if entry is None else entry

    def _missed(self, where: Where) -> Entry:
        """Read the current key's entry from the state, and keep it."""
        entry = self._below.read()
        self._put(where, entry)
        return entry

    def exists(self) -> bool:
        """Return whether the current key has a value. It counts as a read, like `get`."""
        return self._entry().value is not None

    def get(self) -> Any:
        """Return the current key's value, or None."""
        return self._below.lend(self._entry())

    def update(self, value: Any) -> None:
        """Set the current key's value. It is written when the key leaves its layer, or at the next checkpoint."""
        where = self._below.require_key()
        self._put(where, self._below.updated(where, value))

    def clear(self) -> None:
        """Delete the current key's value. This is written as an update is."""
        where = self._below.require_key()
        self._put(where, self._below.cleared(where))

    def update_all_states(self) -> None:
        """Write each dirty entry to the state, once, and keep it as a clean one. The current key stays the same.

        Raises whatever the state or a hook raises. Entries that were not written yet then stay dirty.
        """
        self._below.write_dirty()

    def flush(self) -> None:
        """Write all dirty entries and end the version. The backend calls this at the beginning of a commit."""
        self.update_all_states()
        self._below.end_version(*self._layers)

    def forget(self) -> None:
        """Drop every entry, dirty or not. The backend calls this when the state was undone or restored."""
        for layer in self._layers:
            layer.clear()
        self._below.dirty.clear()
        self._below.end_version()

    def write_key(self, where: Where) -> None:
        """Write one key's entry to the state if it is dirty, and keep it as a clean one."""
        self._below.write_key(where)

    def overwritten(self, cells: Cells) -> None:
        """Drop the entries of these cells. The backend calls this when it was given cells of this state to write."""
        for where in zip(cells.key_groups, cells.keys, strict=True):
            self._below.dirty.pop(where, None)
            self._below.let_go(where)
            for layer in self._layers:
                layer.invalidate(where)

    def size(self) -> int:
        """Return how many keys are cached, in all layers."""
        return sum(map(len, self._layers))

    def dirty_size(self) -> int:
        """Return how many cached keys the state does not have yet: what a checkpoint would write now."""
        return len(self._below.dirty)
