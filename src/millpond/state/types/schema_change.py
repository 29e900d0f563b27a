"""Migrates stored state whose declaration has changed since.

A restore compares the declarations in a checkpoint's manifest with the operator's present ones. If a change loses only
what it drops by name, the stored tables are converted to tables of the new declaration. Any other change is rejected,
before a cell is loaded, with an error that shows both declarations.

These changes are allowed:

- fields added (null in old rows), dropped and reordered;
- numbers made wider;
- a TTL added (lives begin now) or removed (values that had expired by now stay gone);
- another Python type, if every stored value can be read as that type.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import OptionError
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.ttl import LIFE_FIELD

_MEND = (
    "Allowed are fields that are added, dropped or reordered, wider integers and floats, a ttl added or removed, and "
    "another Python type that every stored value can be read as. Declare the state as it was, or give the new one "
    "another name."
)
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float16(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
}
"""The types to which each type can be widened without changing any value."""


def migration(
    old: StateDescriptor, new: StateDescriptor, now_ms: int | None = None
) -> Callable[[pa.Table], pa.Table] | None:
    """Return a function that turns stored rows of `old` into rows of `new`, as segments hold them; None if they agree.

    `now_ms` is the time of the restore, which is needed if a TTL was added or removed. If the change is rejected, an
    OptionError shows both declarations. It may come with the rows, when a value cannot be read.

    >>> from millpond.state.types.descriptor import StateKind
    >>> old = StateDescriptor("n", StateKind.VALUE, pa.schema([("count", pa.int32())]))
    >>> new = StateDescriptor("n", StateKind.VALUE, pa.schema([("count", pa.int64()), ("last", pa.string())]))
    >>> migrate = migration(old, new)
    >>> rows = pa.table({"deleted": [False], "key.user": ["ann"], "value.count": pa.array([1], pa.int32())})
    >>> migrate(rows).to_pylist()
    [{'deleted': False, 'key.user': 'ann', 'value.count': 1, 'value.last': None}]
    """
    why = _why_refused(old, new)
    if why is None and (old.ttl is None) != (new.ttl is None) and now_ms is None:
        why = "a ttl was added or removed, and the restore was given no time (now_ms)"
    if why is not None:
        raise _refused(old, new, why)
    fields, wanted = old.codec(old.name).schema, new.codec(new.name).schema
    return None if fields == wanted and _text(old) == _text(new) else _Migration(old, new, wanted, now_ms or 0)


@dataclass(frozen=True)
class _Migration:
    old: StateDescriptor
    new: StateDescriptor
    fields: pa.Schema
    now_ms: int

    def __call__(self, table: pa.Table) -> pa.Table:
        if self.old.kind is StateKind.LIST:
            return self._lists(table)
        columns = {field.name: table[f"value.{field.name}"] for field in self.old.codec("").schema}
        self._read_as_new(columns, lambda at: _key(table, at))
        others = [name for name in table.column_names if not name.startswith("value.")]
        migrated = _or_deleted(table.select(others), self._expired(columns))
        for field, column in zip(self.fields, self._columns(columns, len(table)), strict=True):
            migrated = migrated.append_column(f"value.{field.name}", column)
        return migrated

    def _lists(self, table: pa.Table) -> pa.Table:
        """Migrate as for single values, with the columns of all elements, and divide them into lists again."""
        lists = table["value"].combine_chunks()
        ends, items = lists.offsets, lists.values
        columns = {field.name: items.field(at) for at, field in enumerate(self.old.codec("").schema)}
        self._read_as_new(columns, lambda at: _key(table, bisect_right(ends.to_pylist(), at) - 1))
        expired = self._expired(columns)
        if expired is not None:
            living = pc.invert(expired)
            columns = {name: column.filter(living) for name, column in columns.items()}
            had = pc.subtract(ends[1:], ends[:-1])
            counted = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(living.cast(pa.int32()))])
            ends = counted.take(ends)
            emptied = pc.and_(pc.greater(had, 0), pc.equal(ends[1:], ends[:-1]))
            if "added" in table.column_names:
                # The added elements have expired, but not the list to which they were added.
                emptied = pc.and_not(emptied, pc.fill_null(table["added"].combine_chunks(), fill_value=False))
            table = _or_deleted(table, emptied)
        converted = self._columns(columns, len(next(iter(columns.values()))))
        migrated = pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(converted, fields=list(self.fields)))
        return table.set_column(table.schema.get_field_index("value"), "value", migrated)

    def _columns(self, columns: dict[str, Any], count: int) -> Iterator[Any]:
        for field in self.fields:
            if field.name in columns:
                yield columns[field.name].cast(field.type)
            elif field.name == LIFE_FIELD.name:
                yield pa.repeat(pa.scalar(self.now_ms, field.type), count)
            else:
                yield pa.nulls(count, field.type)

    def _expired(self, columns: dict[str, Any]) -> Any | None:
        """Return which values expired under a TTL that was removed; None if there was no such TTL."""
        if self.old.ttl is None or self.new.ttl is not None:
            return None
        born_before = self.now_ms - self.old.ttl.duration_ms
        return pc.fill_null(pc.less_equal(columns[LIFE_FIELD.name], born_before), fill_value=False)

    def _read_as_new(self, columns: dict[str, Any], key_at: Callable[[int], Any]) -> None:
        """Raise an OptionError for the first stored object that cannot be read as the new type. The bytes stay."""
        serializer = self.new.serializer
        if serializer is None or _text(self.old) == _text(self.new):
            return
        for at, data in enumerate(columns["value"].to_pylist()):
            if data is None:
                continue
            try:
                value = serializer.check(serializer.loads(data))
            except (TypeError, ValueError) as error:
                raise _refused(
                    self.old, self.new, f"the value of key {key_at(at)!r} cannot be read as the new type: {error}"
                ) from error
            # Only what msgspec wrote gets here: other changes of type were rejected before.
            if _rounded(msgspec.msgpack.decode(data), msgspec.msgpack.decode(serializer.dumps(value))):
                raise _refused(
                    self.old, self.new, f"the value of key {key_at(at)!r} has a whole number that a float would round"
                )


def _why_refused(old: StateDescriptor, new: StateDescriptor) -> str | None:
    if old.kind is not new.kind:
        return f"a {old.kind} state cannot become a {new.kind} state"
    if old.map_key_schema != new.map_key_schema:
        return "the type of its map keys differs"
    if (old.serializer is None) != (new.serializer is None):
        return "rows under a schema and Python objects cannot become each other"
    if old.serializer is not None:
        texts = _text(old), _text(new)
        if texts[0] != texts[1] and not all(text.startswith("msgspec ") for text in texts):
            return f"what {texts[0]!r} wrote, {texts[1]!r} cannot read"
        return None
    before = {field.name: field for field in old.value_schema}
    if before and not any(field.name in before for field in new.value_schema):
        return "none of its fields is left"
    for field in new.value_schema:
        known = before.get(field.name)
        if known is None and not field.nullable:
            return f"field {field.name!r} was added, and old rows have no value for it, but it must not be null"
        if known is not None and not _widens(known.type, field.type):
            return f"field {field.name!r} was {known.type} and cannot become {field.type} without loss"
    return None


def _rounded(stored: Any, read: Any) -> bool:
    """Return whether a whole number became a float that is not equal to it. Both are msgspec's plain values.

    >>> _rounded([1, {"n": 2**53}], [1.0, {"n": 2.0**53}]), _rounded({"n": 2**53 + 1}, {"n": 2.0**53, "new": 0})
    (False, True)
    """
    if type(stored) is int:
        return type(read) is float and stored != read
    if type(stored) is list and type(read) is list:
        if set(map(type, stored)) == {int} and set(map(type, read)) == {float}:
            # Of a set, whose order means nothing, or of a list.
            return sorted(stored) != sorted(read)
        return any(map(_rounded, stored, read))
    if type(stored) is dict and type(read) is dict:
        if set(map(type, stored)) == {int} and set(map(type, read)) == {float} and stored.keys() != read.keys():
            return True
        return any(_rounded(value, read[key]) for key, value in stored.items() if key in read)
    return False


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of the old type is one of the new. Nested structs keep their fields in order."""
    if old == new or new in _WIDER.get(old, ()):
        return True
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _widens(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return bool(old.key_type == new.key_type) and _widens(old.item_type, new.item_type)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        names = [[field.name for field in kind] for kind in (old, new)]
        return names[0] == names[1] and all(_widens(a.type, b.type) for a, b in zip(old, new, strict=True))
    return False


def _text(descriptor: StateDescriptor) -> str:
    return "" if descriptor.serializer is None else descriptor.serializer.text


def _or_deleted(table: pa.Table, gone: Any | None) -> pa.Table:
    if gone is None:
        return table
    return table.set_column(table.schema.get_field_index("deleted"), "deleted", pc.or_(table["deleted"], gone))


def _key(table: pa.Table, at: int) -> tuple[Any, ...]:
    return tuple(table[name][at].as_py() for name in table.column_names if name.startswith("key."))


def _refused(old: StateDescriptor, new: StateDescriptor, why: str) -> OptionError:
    return OptionError(
        f"state {new.name!r} was stored as [{old.describe()}] and is declared as [{new.describe()}]: {why}. {_MEND}"
    )
