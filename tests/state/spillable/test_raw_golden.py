"""Raw segments of every format version are read as they were written.

python -m tests.state.spillable.test_raw_golden    writes those of a new version
"""

from pathlib import Path

import pytest

from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.pairs import Pairs
from millpond.state.checkpoint.format.raw import is_raw, raw_table
from millpond.state.checkpoint.format.segment import CellCodec, decode_segment, encode_segments
from millpond.state.spi import StateKind
from tests.state.spillable.raw_states import KEY, LONG, STATES

GOLDEN = Path(__file__).parent / "golden"


def golden_cells(state):
    table = {("ann",): 7, (LONG,): 1 << 40} if state.kind is StateKind.VALUE else {("ann",): [(1, ["a"]), (None, None)]}
    if state.kind is StateKind.MAP:
        table = {("ann",): {("home",): (3,), (LONG,): (None,)}, (LONG,): {(None,): (4,)}}
    return table


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_raw_segments_of_every_format_version_are_read_for_ever(state):
    """The files are never edited. Those of a new version are written by running this module."""
    for path in sorted(GOLDEN.glob(f"v*/{state.name}.segment")):
        table = decode_segment(path.read_bytes(), path.name)
        assert is_raw(table)
        cells = CellCodec(state, KEY).cells(table)
        found = {}
        for key, map_key, value in zip(cells.keys, cells.map_keys or [None] * len(cells), cells.values, strict=True):
            if map_key is None:
                found[key] = value
            else:
                found.setdefault(key, {})[map_key] = value
        assert found == golden_cells(state)
        assert set(cells.key_groups) == {2}
    assert list(GOLDEN.glob(f"v*/{state.name}.segment"))


def write_golden():
    folder = GOLDEN / "v1"
    folder.mkdir(parents=True)
    for number, state in enumerate(STATES):
        table = golden_cells(state)
        pairs, _ = cell_bytes(state, number).pairs(table, table)
        ((_, data),) = encode_segments(raw_table(2, Pairs(*map(list, zip(*pairs, strict=True)))))
        (folder / f"{state.name}.segment").write_bytes(data)


if __name__ == "__main__":
    write_golden()
