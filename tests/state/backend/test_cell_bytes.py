"""Cells as pairs of bytes: what is laid over them, against a dictionary."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.backend.cell_bytes import cell_bytes, laid_over
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import ABSENT
from millpond.state.types.descriptor import StateDescriptor, StateKind

_LONG = pa.schema([("n", pa.int64())])
_VALUE = StateDescriptor("seen", StateKind.VALUE, _LONG)
_MAP = StateDescriptor("by_day", StateKind.MAP, _LONG, map_key_schema=_LONG)
_KEYS = st.sampled_from(["", "ann", "bob", "x" * 300, ("ann", 1), ("ann", None)])
_NUMBERS = st.tuples(st.integers(0, 9))
_CELLS = st.dictionaries(_KEYS, _NUMBERS)
_CHANGES = st.dictionaries(_KEYS, st.one_of(st.just(ABSENT), _NUMBERS))
_ENTRIES = st.dictionaries(_KEYS, st.dictionaries(_NUMBERS, _NUMBERS, min_size=1))
_ENTRY_CHANGES = st.dictionaries(_KEYS, st.dictionaries(_NUMBERS, st.one_of(st.just(ABSENT), _NUMBERS)))


@given(_CELLS, _CHANGES)
def test_values_that_are_laid_over_pairs(cells, changes):
    expected = {key: value for key, value in (cells | changes).items() if value is not ABSENT}
    assert _laid_over(_VALUE, cells, changes) == expected


@given(_ENTRIES, _ENTRY_CHANGES)
def test_entries_that_are_laid_over_pairs(cells, changes):
    expected = {key: cells.get(key, {}) | changes.get(key, {}) for key in cells | changes}
    expected = {key: {at: value for at, value in all_.items() if value is not ABSENT} for key, all_ in expected.items()}
    assert _laid_over(_MAP, cells, changes) == {key: entries for key, entries in expected.items() if entries}


def _laid_over(state, cells, changes):
    """By a backend that has another number for the state than who wrote the pairs."""
    wrote, lays = cell_bytes(state, 3), cell_bytes(state, 0)
    pairs = sorted(wrote.pairs(cells, cells)[0])
    found = laid_over(lays, Pairs([place for place, _ in pairs], [stored for _, stored in pairs]), changes)
    assert found.places == sorted(found.places), "the next one to lay cells over searches in them"
    table = {}
    wrote.add(table, found)
    return table
