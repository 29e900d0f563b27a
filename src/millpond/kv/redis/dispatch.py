"""Sends commands to the servers that have their slots, and retries those that failed; without any IO.

Place on the data path: between an operation, which yields commands, and the connections of a process.

Idea: `dispatch` is a generator. It yields what to send to each server, or how long to wait, and is sent the result. So
the same code serves threads and asyncio. The commands of one server are one pipeline, and the pipelines of several
servers are sent together.

Invariant: it returns a reply for each command, in their order, or raises. In a call of reads only, some replies may be
an `UnavailableError`, because the rows of the other servers are still useful. A command may run more than once;
`operations` makes only commands for which that is harmless.

Retries:

- After a random pause below a limit that doubles, until `retry_ms` have passed since the first failure: a server that
  is down, slow or loading, a replica that is not promoted yet, a cluster that is down. In a cluster, each such failure
  reads the map of slots again.
- At once: a slot that has moved (MOVED, ASK), and a script that the server does not know (NOSCRIPT).
- Never: memory that is full, a server that refuses writes, a user without permission.

`outages` defines what happens to reads when a server fails for longer.

Source: the Redis Cluster specification, https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

import random
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from millpond.errors import CorruptionError, MillpondError, OptionError, UnavailableError
from millpond.kv.redis.operations import Command, loading
from millpond.kv.redis.options import Address, RedisOptions
from millpond.kv.redis.routes import Routes

_FIRST_PAUSE_MS = 10
_LONGEST_PAUSE_MS = 500
_REDIRECTIONS_AT_ONCE = 4
_PASSING = {"LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY"}
_REFUSED = {"NOAUTH", "WRONGPASS", "NOPERM"}
_SLOT_WITHOUT_NODE = "Hash slot not served"
"""The error with which a healthy node answers for a slot that no node has."""

_SCRIPT_ERROR = re.compile(r"^Error running script .*?@user_script: ?\d+: -?([A-Z]+) ")

Pack: TypeAlias = Callable[[tuple[bytes | int, ...]], bytes]
"""Encodes a command as bytes: hiredis' `pack_command`."""


class Pipeline(NamedTuple):
    """Bytes for one server, and the number of replies to expect."""

    data: bytes
    replies: int


class Send(NamedTuple):
    """A request to send each pipeline; send the generator a `dict[Address, list of replies, or the exception]`."""

    pipelines: dict[Address, Pipeline]


class Pause(NamedTuple):
    """A request to wait; then send the generator None."""

    seconds: float


Dispatch: TypeAlias = Generator[Send | Pause, Any, list[Any]]


def dispatch(
    commands: Sequence[Command],
    routes: Routes,
    options: RedisOptions,
    *,
    pack: Pack,
    clock: Callable[[], int],
    randomness: random.Random,
) -> Dispatch:
    """Return the replies to some commands; see the module docstring."""
    if not routes.is_cluster and not options.replicas and not routes.outages:
        # The common case, without bookkeeping.
        address = options.nodes[0]
        outcome = yield Send({address: Pipeline(b"".join([pack(one.args) for one in commands]), len(commands))})
        replies = outcome[address]
        if type(replies) is list and not any(isinstance(reply, Exception) for reply in replies):
            return replies
    return (yield from _Attempts(commands, routes, options, pack, clock, randomness).run())


class _Attempts:
    """The attempts to run one list of commands. A command's *place* is its index in the list."""

    def __init__(
        self,
        commands: Sequence[Command],
        routes: Routes,
        options: RedisOptions,
        pack: Pack,
        clock: Callable[[], int],
        randomness: random.Random,
    ) -> None:
        self._commands = list(commands)
        self._routes = routes
        self._options = options
        self._pack = pack
        self._clock = clock
        self._random = randomness
        self._replies: list[Any] = [None] * len(commands)
        self._pending = list(range(len(commands)))
        self._asked: dict[int, Address] = {}
        self._failures = 0
        self._redirections = 0
        self._give_up_ms: int | None = None
        self._failure: UnavailableError | None = None
        self._failures_at: dict[Address | None, UnavailableError] = {}
        self._outages = routes.outages
        self._reads_only = all(command.is_read for command in commands)
        self._begun: set[Address] = set()
        self._given_up: dict[int, UnavailableError] = {}

    def run(self) -> Dispatch:
        try:
            yield from self._try()
        finally:
            for node in self._begun:
                self._outages.end(node)
        if self._given_up and len(self._given_up) == len(self._commands):
            raise self._given_up[len(self._commands) - 1]
        for place, failure in self._given_up.items():
            self._replies[place] = failure
        return self._replies

    def _try(self) -> Generator[Send | Pause, Any, None]:
        first = True
        while self._pending:
            if self._routes.is_due(self._clock()):
                yield from self._learn()
            by_node, homeless = self._divide(primary=not first)
            if self._reads_only and self._outages:
                by_node = self._without_outages(by_node)
            outcome: dict[Address, Any] = {}
            if by_node:
                outcome = yield Send({node: self._pipeline(places) for node, places in by_node.items()})
            first = False
            self._failure = None
            self._failures_at.clear()
            again: dict[int, Address | None] = dict.fromkeys(homeless)
            if homeless:
                self._fail(None, "no node of the cluster has the slot of a key")
            for node, places in by_node.items():
                failed = self._settle(node, places, outcome[node])
                again.update(dict.fromkeys(failed, node))
                if len(failed) < len(places):
                    self._outages.answered(node)
            self._pending = sorted(self._without_failed(again))
            if self._failure is not None and self._pending:
                yield from self._pause()

    def _without_outages(self, by_node: dict[Address, list[int]]) -> dict[Address, list[int]]:
        """Give up the commands of servers that are down and that another call is probing; return the others."""
        kept = {}
        for node, places in by_node.items():
            if node in self._outages and node not in self._begun:
                failure = self._outages.begin(node)
                if failure is not None:
                    self._given_up.update(dict.fromkeys(places, failure))
                    continue
                self._begun.add(node)
            kept[node] = places
        return kept

    def _without_failed(self, again: dict[int, Address | None]) -> list[int]:
        """Give up commands that failed for too long, or on a server that is down. Return the places of the rest.

        Raises the failure if time is over and a command is a write.
        """
        if self._failure is None:
            return list(again)
        is_over = self._give_up_ms is not None and self._clock() >= self._give_up_ms
        if is_over and not self._reads_only:
            raise self._failure
        rest = []
        for place, node in again.items():
            failure = self._failures_at.get(node)
            if failure is not None and (is_over or (self._reads_only and node in self._outages)):
                if node is not None and _SLOT_WITHOUT_NODE not in str(failure):
                    self._outages.failed(node, failure)
                self._given_up[place] = failure
            else:
                rest.append(place)
        return rest

    def _divide(self, *, primary: bool) -> tuple[dict[Address, list[int]], list[int]]:
        by_node: dict[Address, list[int]] = {}
        homeless = []
        for place in self._pending:
            node = self._asked.get(place) or self._routes.of(self._commands[place], primary=primary)
            if node is None:
                homeless.append(place)
            else:
                by_node.setdefault(node, []).append(place)
        return by_node, homeless

    def _pipeline(self, places: Sequence[int]) -> Pipeline:
        parts = []
        for place in places:
            if place in self._asked:
                parts.append(self._pack((b"ASKING",)))
            parts.append(self._pack(self._commands[place].args))
        return Pipeline(b"".join(parts), len(parts))

    def _settle(self, node: Address, places: Sequence[int], outcome: Any) -> list[int]:
        """Store the replies of a server; return the places of the commands to send again."""
        if isinstance(outcome, Exception):
            code = _code(outcome)
            if code in _REFUSED or type(outcome).__name__ in ("AuthenticationError", "AuthorizationError"):
                raise self._refused(node, outcome)
            self._fail(node, outcome)
            for place in places:
                self._asked.pop(place, None)
            return list(places)
        replies = iter(outcome)
        again = []
        for place in places:
            reply = next(replies)
            if self._asked.pop(place, None) is not None:
                reply = next(replies)  # the one before was the reply to ASKING
            if isinstance(reply, Exception) and not self._is_answer(place, reply):
                self._take_error(node, place, reply)
                again.append(place)
            else:
                self._replies[place] = reply
        return again

    def _is_answer(self, place: int, reply: Exception) -> bool:
        return self._commands[place].is_read and _code(reply) == "WRONGTYPE"

    def _take_error(self, node: Address, place: int, error: Exception) -> None:
        """Prepare the retry of a command after an error reply; raise if a retry cannot help."""
        code = _code(error)
        if code in ("MOVED", "ASK"):
            slot, address = _redirection(error, node)
            if code == "ASK":
                self._asked[place] = address
            else:
                self._routes.moved(slot, address)
                self._count_redirection(node, error)
        elif code == "NOSCRIPT":
            self._commands[place] = loading(self._commands[place])
        elif code in _PASSING:
            self._fail(node, error)
        else:
            raise self._refused(node, error)

    def _fail(self, node: Address | None, error: object) -> None:
        """Record a failure that may pass by itself."""
        hint = (
            "It is a read-only replica: give the address of the primary, or wait for a fail-over to end."
            if isinstance(error, Exception) and _code(error) == "READONLY"
            else "Check that it runs and can be reached from here; retry_ms is how long to keep trying."
        )
        self._failure = self._failures_at[node] = UnavailableError(
            f"Redis at {node or self._options.nodes[0]} failed for {self._options.retry_ms} ms, the last time with "
            f"{type(error).__name__ if isinstance(error, Exception) else 'error'}: {error}. {hint}"
        )
        if isinstance(error, Exception):
            self._failure.__cause__ = error
        self._routes.is_stale = self._routes.is_cluster
        self._count()

    def _count_redirection(self, node: Address, error: object) -> None:
        """Count a redirection. Too many mean that nodes point at each other, a failure that may pass."""
        self._redirections += 1
        if self._redirections > len(self._commands) + _REDIRECTIONS_AT_ONCE:
            self._failure = self._failures_at[node] = UnavailableError(
                f"Redis at {node} sent commands elsewhere for {self._options.retry_ms} ms, the last time with {error}. "
                "Check with `redis-cli --cluster check` that all nodes agree where the slots are."
            )
            self._count()

    def _count(self) -> None:
        """Count a failure; the first one starts the time for retries."""
        self._failures += 1
        if self._give_up_ms is None:
            self._give_up_ms = self._clock() + self._options.retry_ms

    def _pause(self) -> Generator[Pause, None, None]:
        limit_ms = min(_FIRST_PAUSE_MS << min(self._failures, 10), _LONGEST_PAUSE_MS)
        yield Pause(self._random.uniform(0, limit_ms) / 1_000)

    def _learn(self) -> Generator[Send | Pause, Any, None]:
        """Ask one node after another where the slots are.

        If all nodes are down and only reads wait, one call at a time asks each node once; the others raise.
        """
        known = self._routes.known()
        all_down = self._reads_only and all(address in self._outages for address in known)
        if all_down and known[0] not in self._begun:
            failure = self._outages.begin(known[0])
            if failure is not None:
                raise failure
            self._begun.add(known[0])
        while True:
            last: tuple[Address, object] | None = None
            for address in known:
                outcome = yield Send({address: Pipeline(self._pack((b"CLUSTER", b"SLOTS")), 1)})
                answer = outcome[address]
                ranges = answer[0] if isinstance(answer, list) else answer
                if isinstance(ranges, list):
                    self._routes.learn(address, ranges, self._clock())
                    return
                if _code(ranges) == "ERR" or _code(ranges) in _REFUSED or "Auth" in type(ranges).__name__:
                    raise self._refused(address, ranges)
                last = (address, ranges)
            assert last is not None  # noqa: S101 - there is always a seed
            self._fail(*last)
            is_over = self._give_up_ms is not None and self._clock() >= self._give_up_ms
            if self._failure is not None and (is_over or all_down):
                if self._reads_only:
                    for address in known:
                        self._outages.failed(address, self._failure)
                raise self._failure
            yield from self._pause()

    def _refused(self, node: Address, error: Exception) -> MillpondError:
        """Return the exception to raise for an error that a retry cannot mend."""
        code = _code(error)
        if code in _REFUSED or "Auth" in type(error).__name__:
            return OptionError(
                f"Redis at {node} let this user not in: {error}. Check user and password in the store's URL, and that "
                f"the user may use the keys {self._options.prefix}:*."
            )
        if code == "OOM":
            return UnavailableError(
                f"Redis at {node} is full: {error}. Not all rows of this call were written. Raise maxmemory, or drop "
                "old datasets."
            )
        if code == "WRONGTYPE":
            return CorruptionError(
                f"Redis at {node} holds something else under a name of this store: {error}. Give the store another "
                "prefix."
            )
        return UnavailableError(f"Redis at {node} refused a command: {error}. Nothing is tried again after this.")


def _code(error: object) -> str:
    """Return the first word of an error reply, such as MOVED. Before Redis 7, a script's word is within the text."""
    of_script = _SCRIPT_ERROR.search(str(error))
    if of_script is not None:
        return of_script[1]
    found = getattr(error, "status_code", None)
    return found or str(error).partition(" ")[0]


def _redirection(error: Exception, asked: Address) -> tuple[int, Address]:
    """Return slot and node of `MOVED 3999 127.0.0.1:6381`; a missing host means the host that was asked."""
    slot, target = str(error).split()[-2:]
    host, _, port = target.rpartition(":")
    return int(slot), Address(host.strip("[]") or asked.host, int(port))
