"""Several GroupBys requested with one key: the features that a model takes in."""

from dataclasses import dataclass

from millpond.features.definitions.faults import Faults, frozen_texts
from millpond.features.definitions.feature_types import join_derivation_faults
from millpond.features.definitions.field import Field
from millpond.features.definitions.group_by import GroupBy
from millpond.features.definitions.source import EventSource, Texts
from millpond.features.derivations.definition import Derivation
from millpond.suggestions import hint


@dataclass(frozen=True, slots=True)
class JoinPart:
    """One GroupBy of a Join.

    Args:
        group_by: the GroupBy.
        key_mapping: from columns of the Join's key to keys of the GroupBy; a key that is not mapped comes from
            the column of its own name.
        prefix: precedes its features' names; None means the GroupBy's name.

    >>> route = GroupBy("route", keys=(Field("origin", "string"),), inputs=(Field("tail", "string"),),
    ...                 accuracy="snapshot")
    >>> JoinPart(route, key_mapping={"airport": "origin"}).columns
    (('airport', 'origin'),)
    >>> JoinPart(route).feature_names
    ('route_tail',)
    """

    group_by: GroupBy
    key_mapping: Texts = ()
    prefix: str | None = None

    def __post_init__(self) -> None:
        faults = Faults("JoinPart")
        object.__setattr__(self, "key_mapping", frozen_texts(faults, "key_mapping", self.key_mapping))
        if not isinstance(self.group_by, GroupBy):
            faults.add(f"group_by must be a GroupBy, got {self.group_by!r}")
            faults.report()
        names = [field.name for field in self.group_by.keys]
        for column, key in self._mapping():
            if key not in names:
                mend = hint(key, names)
                if column in names:
                    mend = f"it goes from a column of the Join to a key of the GroupBy: write {{{key!r}: {column!r}}}"
                faults.add(
                    f"key_mapping sends {column!r} to {key!r}, which is no key of GroupBy {self.group_by.name!r}; "
                    f"{mend}"
                )
        faults.doubles("mapped key", [key for _, key in self._mapping()])
        if self.prefix is not None and not isinstance(self.prefix, str):
            faults.add(f"prefix must be a text, got {self.prefix!r}")
        faults.report()

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The column of the Join for each key of the GroupBy, as (column, key), in the order of the key."""
        column_of = {key: column for column, key in self._mapping()}
        return tuple((column_of.get(field.name, field.name), field.name) for field in self.group_by.keys)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of its features in the Join, derivations among them."""
        derived = tuple(derivation.name for derivation in self.group_by.derivations)
        return tuple(self.renamed(name) for name in (*self.group_by.feature_names, *derived))

    def renamed(self, feature: str) -> str:
        """Return the name that a feature of the GroupBy has in the Join.

        >>> route = GroupBy("route", keys=(Field("origin", "string"),), inputs=(Field("tail", "string"),),
        ...                 accuracy="snapshot")
        >>> JoinPart(route, prefix="").renamed("tail"), JoinPart(route, prefix="r").renamed("tail")
        ('tail', 'r_tail')
        """
        prefix = self.group_by.name if self.prefix is None else self.prefix
        return f"{prefix}_{feature}" if prefix else feature

    def _mapping(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.key_mapping)  # type: ignore[arg-type]  # pairs since it was made


@dataclass(frozen=True, slots=True)
class Join:
    """Features of several GroupBys under one key, and values derived from them.

    Args:
        name: letters, digits, ``_`` and ``-``.
        parts: the GroupBys, with the mapping of their keys and the prefix of their features.
        left: the rows of the training set's queries, and of a GroupBy that has this Join as its source;
            None if queries are always passed.
        derivations: features computed from features, keys and context, in SQL.
        context: values that are known at query time only, such as the amount of the purchase that is
            scored. Online, the request gives them; offline, they are columns of the query table.
        tags: texts for people and tools; they change nothing that is computed.

    Raises:
        OptionError: a part is missing, appears twice, or does not fit another, or a derivation is not valid. The
            error names all faults.
        MissingDependencyError: it has derivations, and sqlglot is not installed.

    >>> route = GroupBy("route", keys=(Field("origin", "string"),), inputs=(Field("tail", "string"),),
    ...                 accuracy="snapshot")
    >>> Join("flight", parts=(JoinPart(route),)).keys
    (Field(name='origin', type='string'),)
    """

    name: str
    parts: tuple[JoinPart, ...]
    left: EventSource | None = None
    derivations: tuple[Derivation, ...] = ()
    context: tuple[Field, ...] = ()
    tags: Texts = ()

    def __post_init__(self) -> None:
        faults = Faults(f"Join {self.name!r}")
        faults.name(self.name)
        object.__setattr__(self, "parts", faults.parts("parts", self.parts, JoinPart))
        object.__setattr__(self, "context", faults.parts("context", self.context, Field))
        object.__setattr__(self, "derivations", faults.parts("derivations", self.derivations, Derivation))
        object.__setattr__(self, "tags", frozen_texts(faults, "tags", self.tags))
        if not self.parts:
            faults.add("it has no parts; give it at least one GroupBy")
        if self.left is not None and not isinstance(self.left, EventSource):
            faults.add(f"left must be an EventSource, got {self.left!r}")
        self._check_keys(faults)
        names = [name for part in self.parts for name in part.feature_names]
        faults.doubles("feature", names, "give each of its parts a prefix of its own: JoinPart(..., prefix=...)")
        faults.doubles("feature", [*dict.fromkeys(names), *(field.name for field in self.context)])
        for fault in join_derivation_faults(self):
            faults.add(fault)
        faults.report()

    @property
    def keys(self) -> tuple[Field, ...]:
        """The columns that a request gives, in the order in which the parts first need them."""
        fields: dict[str, Field] = {}
        for part in self.parts:
            types = {field.name: field.type for field in part.group_by.keys}
            for column, key in part.columns:
                fields.setdefault(column, Field(column, types[key]))
        return tuple(fields.values())

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of all features of the parts, in order, without the Join's own derivations."""
        return tuple(name for part in self.parts for name in part.feature_names)

    def _check_keys(self, faults: Faults) -> None:
        found: dict[str, tuple[str, str]] = {}
        for part in self.parts:
            types = {field.name: field.type for field in part.group_by.keys}
            for column, key in part.columns:
                other, kind = found.setdefault(column, (part.group_by.name, types[key]))
                if kind != types[key]:
                    faults.add(
                        f"column {column!r} is a key of type {kind} for GroupBy {other!r} and of type {types[key]} "
                        f"for {part.group_by.name!r}; map one of them from another column"
                    )
        for field in self.context:
            if field.name in found:
                faults.add(f"context field {field.name!r} is also a key; drop it from the context")
