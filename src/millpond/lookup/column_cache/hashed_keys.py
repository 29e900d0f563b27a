"""A batch of keys by their hashes.

Between the join and the column cache. The invariant: **two keys are one if their hashes are equal and so are
their columns**. A single column of whole numbers is told apart by its hash alone, which mixes the 64 bits
without losing one; then no columns are kept. A key that no row can have, with a null or with a fraction where
the table has whole numbers, is not `possible`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.lookup.column_cache.hash_index import Slots
from millpond.lookup.column_cache.key_hash import Hashes, hashes, plain_column


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """Keys of a batch: their hashes, and their plain columns where these are needed to tell them apart.

    >>> keys, possible = HashedKeys.of([pa.array([5, None, 7])], pa.schema([("n", pa.int64())]))
    >>> len(keys.hashes), keys.columns, possible.tolist()
    (3, (), [True, False, True])
    """

    hashes: Hashes
    columns: tuple[pa.Array, ...]

    @classmethod
    def of(cls, keys: Sequence[pa.Array], key_schema: pa.Schema) -> tuple["HashedKeys", npt.NDArray[np.bool_]]:
        """The keys, given as one array for each key column, and which of them a row may have."""
        plain = [plain_column(column, field.type) for column, field in zip(keys, key_schema, strict=True)]
        possible = np.ones(len(keys[0]), np.bool_)
        for column in plain:
            if column.null_count:
                possible &= column.is_valid().to_numpy(zero_copy_only=False)
        told_by_hash = len(plain) == 1 and pa.types.is_int64(plain[0].type)
        return cls(hashes(plain), () if told_by_hash else tuple(plain)), possible

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, places: Slots) -> "HashedKeys":
        """Some of them."""
        taken = pa.array(places)
        return HashedKeys(self.hashes[places], tuple(pc.take(column, taken) for column in self.columns))
