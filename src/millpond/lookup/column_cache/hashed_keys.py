"""A batch of keys by their hashes.

Place on the data path: between the join and the column cache. The invariant: **two keys are equal if their hashes
and their columns are equal**. For a single column of whole numbers the hash alone suffices, since it maps the
64 bits one to one; then no columns are kept. A key that no row can have is not `possible`: one with a null, or
with a fraction where the table has whole numbers.
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
    """The keys of a batch: their hashes, and their plain columns unless the hashes alone identify them.

    >>> keys, possible = HashedKeys.of([pa.array([5, None, 7])], pa.schema([("n", pa.int64())]))
    >>> len(keys.hashes), keys.columns, possible.tolist()
    (3, (), [True, False, True])
    """

    hashes: Hashes
    columns: tuple[pa.Array, ...]

    @classmethod
    def of(cls, keys: Sequence[pa.Array], key_schema: pa.Schema) -> tuple["HashedKeys", npt.NDArray[np.bool_]]:
        """Return the keys, given as one array for each key column, and which of them a row can have."""
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
        """Return the keys at these positions."""
        taken = pa.array(places)
        return HashedKeys(self.hashes[places], tuple(pc.take(column, taken) for column in self.columns))
