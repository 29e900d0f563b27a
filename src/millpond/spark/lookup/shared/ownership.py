"""Which executor owns a key: rendezvous hashing of a batch of keys.

Every executor computes the same owner from the same members, without a message. The invariant: **if a member joins or
leaves, only the keys that it gains or loses change their owner**. So the other caches stay warm.

The trade-off: a key is hashed once for each member. That is one pass over the batch's hashes per member.

Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996).
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.lookup.column_cache.key_hash import Hashes, hashes

Positions = npt.NDArray[np.int64]


def seed(member: str) -> int:
    """Return the number by which a member's weights differ from those of the others."""
    return int.from_bytes(blake2b(member.encode(), digest_size=8).digest(), "little")


def owners(keys: Hashes, seeds: Sequence[int]) -> Positions:
    """Return for each key hash the position of its owner among the members with these seeds.

    >>> keys = hashes([pa.array(range(1_000))])
    >>> three = [seed(name) for name in ("a", "b", "c")]
    >>> before, after = owners(keys, three), owners(keys, three[:2])
    >>> bool((np.bincount(before) > 280).all()), bool((after == before)[before < 2].all())
    (True, True)
    """
    numbers = pa.array(keys.view(np.int64))
    owner, most = np.zeros(len(keys), np.int64), hashes([numbers], seeds[0])
    for position, each in enumerate(seeds[1:], start=1):
        weights = hashes([numbers], each)
        # Without a branch for each key: half of them would be mispredicted.
        owner += (position - owner) * (weights > most)
        np.maximum(most, weights, out=most)
    return owner
