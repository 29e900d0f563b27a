"""Leaves copied bytes that outlived their TTL out of a base, as `millpond.state.backend.expiry` does for decoded cells.

The bytes of a value with a TTL begin with the time since when it is alive, so nothing is decoded but what has expired,
whose keys the live state must be told to remove.
"""

from millpond.state.backend.cell_bytes import cell_bytes, lives
from millpond.state.backend.expiry import removals
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.key_types import given_forms
from millpond.state.types.ttl import Ttl


def living_pairs(
    descriptor: StateDescriptor, ttl: Ttl, key_group: int, pairs: Pairs, now_ms: int
) -> tuple[Pairs, Cells]:
    """The pairs of one key group without what has expired by now; and what a backend must write to be rid of that.

    A list is judged element by element, and is gone when none is left.
    """
    since, born_before = lives(descriptor.kind), now_ms - ttl.duration_ms
    living: list[Pair] = []
    touched: list[Pair] = []
    if descriptor.kind is StateKind.LIST:
        for pair in pairs:
            (living if min(since(*pair), default=born_before) > born_before else touched).append(pair)
    else:
        for pair in pairs:
            (living if since(*pair) > born_before else touched).append(pair)
    if not touched:
        return pairs, Cells()
    form = cell_bytes(descriptor, 0)
    gone = removals(form.cells(key_group, touched), ttl, now_ms)
    keys = given_forms(gone.keys)
    shortened = {key: value for key, value in zip(keys, gone.values, strict=True) if value is not ABSENT}
    living += form.pairs(shortened, shortened)[0]
    return Pairs([place for place, _ in living], [stored for _, stored in living]), gone
