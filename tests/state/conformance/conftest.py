"""A new backend for every test, of every subject; every run tests a cover of the whole product (`covering`)."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from millpond.state.spi import KeyedStateBackend, StateKind
from tests.state.conformance.covering import cover
from tests.state.conformance.kinds import FEW_KINDS, GROUPS, NESTED_ROW, Cell
from tests.state.conformance.subjects import IN_MEMORY, SUBJECTS

FOLDER = Path(__file__).parent


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


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items) -> None:
    """Mark as `soak` what the cover leaves out of the whole product."""
    behaviours = defaultdict(list)
    for item in items:
        if item.path.parent == FOLDER and "subject" in item.fixturenames:
            behaviours[f"{item.path.stem}::{item.originalname}"].append(item)
    for behaviour, tests in behaviours.items():
        chosen = set(cover(behaviour, [test.callspec.params for test in tests]))
        for number, test in enumerate(tests):
            if number not in chosen:
                test.add_marker(pytest.mark.soak)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder."""
    with TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def backend(subject, folder) -> Iterator[KeyedStateBackend]:
    """A backend without state, of the key groups `GROUPS`."""
    backend = subject.open(GROUPS, folder / "state")
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
