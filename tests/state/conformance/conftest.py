"""A new backend for every test, of every subject."""

from collections.abc import Iterator

import pytest

from millpond.state import KeyedStateBackend, StateKind
from tests.state.conformance.kinds import FEW_KINDS, GROUPS, MUTABLE_KINDS, Cell, Kind
from tests.state.conformance.subjects import SUBJECTS, Subject


@pytest.fixture(params=SUBJECTS, ids=repr)
def subject(request) -> Subject:
    """What is tested."""
    return request.param


@pytest.fixture
def backend(subject, tmp_path) -> Iterator[KeyedStateBackend]:
    """A backend without state, of the key groups `GROUPS`."""
    backend = subject.open(GROUPS, tmp_path / "state")
    yield backend
    backend.close()


@pytest.fixture(params=list(StateKind))
def shape(request) -> StateKind:
    """Value, list and map."""
    return request.param


@pytest.fixture(params=FEW_KINDS, ids=repr)
def kind(request) -> Kind:
    """Immutable rows, mutable rows, and objects with a TTL."""
    return request.param


@pytest.fixture(params=MUTABLE_KINDS, ids=repr)
def mutable_kind(request) -> Kind:
    """Every kind whose values can be changed in place."""
    return request.param


@pytest.fixture
def cell(backend, shape, kind) -> Cell:
    """One state of every shape with values of a few kinds."""
    return Cell(backend, shape, kind)
