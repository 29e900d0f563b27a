"""Leaves expired values out of a base of copied bytes, as `millpond.state.backend.expiry` does for decoded cells.

The bytes of a value with a TTL begin with the time since when it is alive. So only expired values are decoded: their
keys are needed to remove them from live state.
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
    """Return the pairs of one key group without what has expired by `now_ms`, and the writes that remove the expired.

    List elements expire one by one; a list without living elements is left out.
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
