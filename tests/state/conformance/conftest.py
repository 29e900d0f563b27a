"""A new backend for every test, of every subject."""

from collections.abc import Iterator

import pytest

from millpond.state import KeyedStateBackend, StateKind
from tests.state.conformance.kinds import FEW_KINDS, GROUPS, NESTED_ROW, Cell
from tests.state.conformance.subjects import SUBJECTS


def pytest_generate_tests(metafunc) -> None:
    """Run over every subject, and with it over the module's `kinds`: all of them, or one, as the subject says."""
    if "subject" not in metafunc.fixturenames:
        return
    if "kind" not in metafunc.fixturenames:
        metafunc.parametrize("subject", SUBJECTS, ids=repr)
        return
    kinds = getattr(metafunc.module, "KINDS_UNDER_TEST", FEW_KINDS)
    one = NESTED_ROW if NESTED_ROW in kinds else kinds[0]
    pairs = [(subject, kind) for subject in SUBJECTS for kind in (kinds if subject.every_kind else [one])]
    metafunc.parametrize(("subject", "kind"), pairs, ids=repr)


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


@pytest.fixture
def cell(backend, shape, kind) -> Cell:
    """One state of every shape with values of a few kinds."""
    return Cell(backend, shape, kind)
