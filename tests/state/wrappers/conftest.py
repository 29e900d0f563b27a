"""A value state that counts what reaches it, in a backend, with users as keys."""

from dataclasses import dataclass, field

import pytest

from millpond.state.backend.protocols import KeyedStateBackend, ValueState
from millpond.state.heap.backend import HeapBackend
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.wrappers.cached_values import CachedValues


@dataclass
class CountingState:
    """A value state's handle that notes each use with the key it was for."""

    backend: KeyedStateBackend
    inner: ValueState
    gets: list = field(default_factory=list)
    puts: list = field(default_factory=list)
    clears: list = field(default_factory=list)
    refused: set = field(default_factory=set)

    @property
    def descriptor(self):
        return self.inner.descriptor

    @property
    def user(self):
        return self.backend.context.key[0]

    def exists(self):
        return self.inner.exists()

    def get(self):
        self.gets.append(self.user)
        return self.inner.get()

    def update(self, value):
        self._refuse()
        self.puts.append((self.user, value))
        self.inner.update(value)

    def clear(self):
        self._refuse()
        self.clears.append(self.user)
        self.inner.clear()

    def _refuse(self):
        if self.user in self.refused:
            raise OSError(f"no space for {self.user}")


@dataclass
class Room:
    """A backend with two key groups, one counted state, and the words that tests use."""

    backend: KeyedStateBackend
    state: CountingState

    def set_current_key(self, user):
        self.backend.enter(len(user) % 2)
        self.backend.context.key = (user,)

    def stored(self, user):
        """What the backend itself has, past cache and counters. Leaves the user current."""
        self.set_current_key(user)
        return self.state.inner.get()

    def fill(self, **values):
        """Give users values, as an earlier version left them."""
        for user, value in values.items():
            self.set_current_key(user)
            self.state.inner.update(value)
        self.backend.commit().release()
        self.backend.acknowledge()

    def counts(self):
        """Gets and puts that reached the state so far."""
        return len(self.state.gets), len(self.state.puts)


@pytest.fixture(params=["heap", "rocksdb"])
def room(request, tmp_path):
    inner = HeapBackend(range(2)) if request.param == "heap" else RocksDbBackend(range(2), tmp_path / "state")
    backend = CachedValues(inner)
    descriptor = StateDescriptor(
        "profile", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(dict[str, int])
    )
    yield Room(backend, CountingState(backend, backend.value_state(descriptor)))
    backend.close()
