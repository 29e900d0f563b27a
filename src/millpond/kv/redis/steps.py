"""Runs the operations of a Redis store, without any IO.

Place on the data path: the shared code of `RedisStore` and `AsyncRedisStore`, which own the connections, send and
wait. `operations` makes the commands and reads the replies. `dispatch` chooses their servers and retries.
"""

import random
import time
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from millpond.kv.redis.connections import import_pack
from millpond.kv.redis.dispatch import Pack, Pause, Send, dispatch
from millpond.kv.redis.operations import RedisOperations, Steps
from millpond.kv.redis.options import Address, RedisOptions
from millpond.kv.redis.routes import Routes

_T = TypeVar("_T")

Waits: TypeAlias = Generator[Send | Pause, Any, _T]
"""Yields what to send or how long to wait, is sent the outcome, and returns the operation's result."""


class RedisSteps:
    """What one store knows of its servers; may be shared by threads.

    Attributes:
        options: the options of the store.
        clock: returns the time by which rows expire.
        operations: the operations of the store.
    """

    def __init__(self, options: RedisOptions, clock: Callable[[], int]) -> None:
        self.options = options
        self.clock = clock
        self._random = random.Random()
        self.operations = RedisOperations(options.prefix, clock=clock, randomness=self._random)
        self._routes = Routes(options)
        self._pack: Pack | None = None

    def only_server(self) -> Address | None:
        """Return the server that every command goes to; None if there are several, or it is known to be down."""
        options, routes = self.options, self._routes
        return None if routes.is_cluster or options.replicas or routes.outages else options.nodes[0]

    def run(self, operation: Steps[_T]) -> Waits[_T]:
        """Run an operation to its end, and return its result."""
        pack = self._pack
        if pack is None:
            pack = self._pack = import_pack()
        replies: list[Any] | None = None
        while True:
            try:
                commands = next(operation) if replies is None else operation.send(replies)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            replies = []
            if commands:
                replies = yield from dispatch(
                    commands, self._routes, self.options, pack=pack, clock=_monotonic_ms, randomness=self._random
                )


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
