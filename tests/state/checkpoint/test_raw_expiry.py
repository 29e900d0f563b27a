"""What has expired is left out of copied bytes just as it is of decoded cells."""

from operator import itemgetter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.state.backend import cell_bytes as cell_bytes_module
from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.expiry import alive, removals
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells
from millpond.state.checkpoint.raw_expiry import living_pairs
from millpond.state.spi import StateDescriptor, StateKind, Ttl

GROUP = 3
TTL = Ttl(100)
STATES = {
    kind: StateDescriptor(
        kind.value,
        kind,
        pa.schema([("word", pa.string()), ("n", pa.int64())]),
        pa.schema([("page", pa.string())]) if kind is StateKind.MAP else None,
        ttl=TTL,
    )
    for kind in StateKind
}
keys = st.tuples(st.text(max_size=3) | st.just("long" * 100))
births = st.integers(-300, 300)
tables = {
    StateKind.VALUE: st.dictionaries(keys, births.map(lambda born: (("word", born), born))),
    StateKind.LIST: st.dictionaries(keys, st.lists(births.map(lambda born: (("word", born), born)), max_size=4)),
    StateKind.MAP: st.dictionaries(
        keys, st.dictionaries(keys, births.map(lambda born: (("word", born), born)), min_size=1, max_size=4)
    ),
}


def pairs_of(state: StateDescriptor, table: dict) -> Pairs:
    pairs = cell_bytes(state, 5).pairs(table, table)[0]
    return Pairs([place for place, _ in pairs], [stored for _, stored in pairs])


def rows(cells: Cells) -> list:
    places = cells.map_keys or [()] * len(cells)
    return sorted(zip(cells.keys, places, cells.values, strict=True), key=itemgetter(0, 1))


@pytest.mark.parametrize("kind", StateKind)
@settings(deadline=None)
@given(data=st.data(), now_ms=births)
def test_copied_bytes_lose_what_decoded_cells_lose(kind, data, now_ms):
    state, table = STATES[kind], data.draw(tables[kind])
    pairs = pairs_of(state, table)
    form = cell_bytes(state, 0)
    cells = form.cells(GROUP, pairs)
    living, gone = living_pairs(state, TTL, GROUP, pairs, now_ms)
    assert rows(form.cells(GROUP, living)) == rows(alive(cells, TTL, now_ms))
    assert rows(gone) == rows(removals(cells, TTL, now_ms))


def test_bytes_of_what_lives_are_neither_decoded_nor_changed(monkeypatch):
    state = STATES[StateKind.VALUE]
    table = {(f"user{number}",): (("word", number), number) for number in range(10)}
    pairs = pairs_of(state, table)
    monkeypatch.setattr(cell_bytes_module.FlatBytes, "cells", lambda *_: 1 // 0)
    assert living_pairs(state, TTL, GROUP, pairs, now_ms=50) == (pairs, Cells())
    with pytest.raises(ZeroDivisionError):
        living_pairs(state, TTL, GROUP, pairs, now_ms=105)
