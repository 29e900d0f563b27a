"""The current key, which the handles of every backend read at each use.

The wheels of some platforms have this module compiled (docs/explanation/state.md), so its types hold at run time.
"""

from millpond.state.types.rows import Row


class KeyContext:
    """The current key, and the time.

    The backend's `enter` sets `key_group`. The operator assigns `key` before it calls user code, and `now_ms`, the
    time of the batch or record, by which TTL is judged.
    """

    __slots__ = ("key", "key_group", "now_ms")

    def __init__(self) -> None:
        self.key: Row = ()
        self.key_group = -1
        self.now_ms = 0

    def leave(self) -> None:
        """Have no key current until a key group is entered again."""
        self.key_group = -1
        self.key = ()
