"""A GroupBy or Join with the features wanted of it, resolved once.

Place on the data path: between a request, which has names, and the reads, which have positions. A
`Prepared` knows which GroupBys must be read for the features, where each key part comes from, the name of each
value in the answer, and which derivations follow. A request only runs it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.errors import DataError, OptionError
from millpond.features import GroupByPlan, Join
from millpond.features.answering import ColumnFinisher, Finisher, Finishers, Layout
from millpond.features.derivations import CompiledDerivations
from millpond.features.scalar_values import UnfitError
from millpond.features.types import DataType, parse_type
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.messages import Target, refused_context
from millpond.serving.reads.plain_reader import PlainReader
from millpond.serving.reads.short_read import ShortReader
from millpond.suggestions import did_you_mean, hint

MISSING: Any = object()


class PreparedPart:
    """One GroupBy of a target, with the features wanted of it.

    Attributes:
        label: its name in errors and batch ends.
        group: the GroupBy.
        columns: the column for each key part, in the order of the key.
        features: the GroupBy's own features that are read, without derivations.
        names: the name of each value in the answer, by its name in the GroupBy.
        derived: the derivations of the GroupBy, if any is wanted; else None.
        layout: the windows that are read; None for snapshots.
        finish: finishes the features of one key and returns them by their names in the answer; None for snapshots and
            with derivations.
        finish_columns: does so for many keys.
        reader: begins short reads of keys; None if there are none.
    """

    __slots__ = (
        "columns",
        "copied",
        "derived",
        "features",
        "finish",
        "finish_columns",
        "finishers",
        "group",
        "label",
        "layout",
        "names",
        "reader",
        "values_at",
    )

    def __init__(
        self,
        label: str,
        group: ServedGroup,
        columns: Sequence[str],
        names: Mapping[str, str],
        derived: CompiledDerivations | None,
        on_bound: Callable[[], object],
    ) -> None:
        plan = group.plan
        wanted = [name for name in plan.feature_names if name in names]
        derived_names = [name for name in names if name not in plan.feature_names]
        if derived is not None:
            needed = {column for name in derived_names for column in derived.inputs[name]}
            wanted = [name for name in plan.feature_names if name in names or name in needed]
        self.label = label
        self.group = group
        self.columns = tuple(columns)
        self.features = tuple(wanted)
        self.names = dict(names)
        self.derived = derived if derived_names else None
        self.layout: Layout | None = None
        self.finishers: Finishers | None = None
        self.finish: Finisher | None = None
        self.finish_columns: ColumnFinisher | None = None
        self.reader: ShortReader | None = None
        self.values_at: tuple[tuple[str, int], ...] = ()
        self.copied: tuple[tuple[str, int], ...] = ()
        """The features of a snapshot that are lists or maps, and how many of these lie within each other."""
        if group.has_stream:
            self.layout = group.layout if group.is_cached else Layout(plan, wanted)
            self.finishers = Finishers(self.layout, wanted, on_bound=on_bound)
            self.reader = group.short_reader
            if not group.is_cached:
                self.reader = PlainReader(group, self.layout)
            if self.derived is None:
                named = self.finishers
                if list(names.items()) != [(name, name) for name in wanted]:
                    named = Finishers(self.layout, list(names), names, on_bound)
                self.finish = named.compiled
                self.finish_columns = named.compiled_columns
        else:
            self.values_at = tuple((name, plan.feature_names.index(name)) for name in wanted)
            types = feature_types(plan)
            depths = {name: _depth(parse_type(types[name])) for name in wanted}
            self.copied = tuple((name, depth) for name, depth in depths.items() if depth)


class Prepared:
    """A target and the features wanted of it; immutable, made by `Fetcher.prepare`.

    Attributes:
        target: what is asked.
        features: the names of the wanted features, in the order of an answer.
        parts: the GroupBys that are read.
        derived: the derivations of the Join, if any is wanted; else None.
        context: the fields that a request must give, with their types.
        key_columns: the key columns that a request must give.
        labels: the labels of the parts.
        is_in_order: whether the values of the parts, one part after the other, are in the order of an answer.
    """

    __slots__ = (
        "_key_makers",
        "_key_places",
        "context",
        "derived",
        "derived_names",
        "features",
        "is_in_order",
        "key_columns",
        "known_columns",
        "known_context",
        "labels",
        "parts",
        "single",
        "target",
    )

    def __init__(
        self,
        target: Target,
        features: Sequence[str],
        parts: Sequence[PreparedPart],
        derived: CompiledDerivations | None,
        derived_names: Sequence[str],
        context: Mapping[str, str],
    ) -> None:
        self.target = target
        self.features = tuple(features)
        self.parts = tuple(parts)
        self.derived = derived
        self.derived_names = tuple(derived_names)
        self.context = {name: parse_type(type_) for name, type_ in context.items()}
        self.known_context = target.context
        self.known_columns = target.keys
        needed = dict.fromkeys(column for part in parts for column in part.columns)
        if derived is not None:
            needed |= dict.fromkeys(
                column for name in derived_names for column in derived.inputs[name] if column in target.keys
            )
        self.key_columns = tuple(needed)
        self.is_in_order = self.features == tuple(named for part in parts for named in part.names.values())
        self.labels = tuple(part.label for part in parts)
        self.single = parts[0] if target.kind == "group_by" else None
        # Parts whose keys have the same columns with the same types share one encoded key.
        makers: dict[Any, int] = {}
        self._key_makers: list[tuple[Callable[[list[Any]], bytes | None], tuple[str, ...]]] = []
        places = []
        for part in parts:
            plan = part.group.plan
            made_of = (part.columns, tuple(field.type for field in plan.group_by.keys))
            if made_of not in makers:
                makers[made_of] = len(makers)
                self._key_makers.append((plan.encode_key, part.columns))
            places.append(makers[made_of])
        self._key_places = places if len(makers) < len(parts) else None

    def encoded_keys(self, keys: Mapping[str, Any]) -> list[bytes | None]:
        """Return the encoded key of each part; None where a part of the key is None.

        Raises:
            DataError: a part of a key is missing, unknown, or not of its declared type; the error names it.
        """
        if self.single is not None:
            return [self.single.group.plan.encode_named_key(keys)]
        if type(keys) is not dict and not isinstance(keys, Mapping):
            raise DataError(
                f"Join {self.target.name!r}: keys are {keys!r}; expected a mapping from the names "
                f"{list(self.known_columns)} to values"
            )
        if not keys.keys() <= self.known_columns.keys():
            unknown = next(name for name in keys if name not in self.known_columns)
            raise DataError(
                f"Join {self.target.name!r} has no key {unknown!r}; its keys are {list(self.known_columns)}"
                f"{did_you_mean(unknown, self.known_columns)}"
            )
        try:
            made = [encode([keys[column] for column in columns]) for encode, columns in self._key_makers]
            return made if self._key_places is None else [made[place] for place in self._key_places]
        except KeyError as missing:
            raise DataError(
                f"Join {self.target.name!r}: key {missing.args[0]!r} is missing; give it, or None where there is none"
            ) from None

    def checked_context(self, context: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the fields of the context that derivations read, checked.

        Raises:
            DataError: a field is missing, unknown, or not of its declared type; the error names it.
        """
        given = context or {}
        if type(given) is not dict and not isinstance(given, Mapping):
            raise refused_context(self.target.name, given)
        for name in given:
            if name not in self.known_context:
                raise DataError(f"{self.target.name!r} has no context field {name!r}; {hint(name, self.known_context)}")
        checked = {}
        for name, type_ in self.context.items():
            value = given.get(name, MISSING)
            if value is MISSING:
                raise DataError(
                    f"{self.target.name!r}: the context field {name!r} of type {type_.name} is missing; give it, or "
                    "None where it is not known"
                )
            if value is not None:
                try:
                    value = type_.outward(type_.inward([value])[0])
                except UnfitError as cause:
                    raise DataError(
                        f"{self.target.name!r}: the context field {name!r} must be of type {type_.name}, got "
                        f"{value!r}: {cause.reason}"
                    ) from cause
            checked[name] = value
        return checked


class ResolvedTarget:
    """A GroupBy or Join that is served, with all names and types known."""

    def __init__(self, definition: GroupByPlan | Join, groups: Mapping[str, ServedGroup]) -> None:
        self._derived: CompiledDerivations | None = None
        self._parts: list[tuple[str, ServedGroup, tuple[str, ...], dict[str, str], CompiledDerivations | None]] = []
        if isinstance(definition, Join):
            self.target = self._join(definition, groups)
        else:
            self.target = self._group_by(groups[definition.name])

    def prepare(self, features: Sequence[str] | None, on_bound: Callable[[], object]) -> Prepared:
        """Resolve the features wanted; None takes all.

        Args:
            features: their names, in the order of the answer.
            on_bound: called for each value of an answer that is only a bound.

        Raises:
            OptionError: one is unknown; the error has the nearest name.
        """
        target = self.target
        wanted = tuple(target.features) if features is None else tuple(features)
        for name in wanted:
            if name not in target.features:
                raise OptionError(f"{target.name!r} has no feature {name!r}; {hint(name, target.features)}")
        if not wanted or len(set(wanted)) != len(wanted):
            raise OptionError(f"features of {target.name!r} are {list(wanted)}; name at least one, and each once")
        own = [] if self._derived is None else [name for name in wanted if name in self._derived.result_types]
        needed = set(wanted)
        context: dict[str, str] = {}
        if self._derived is not None:
            inputs = dict.fromkeys(column for name in own for column in self._derived.inputs[name])
            needed |= inputs.keys()
            context = {name: target.context[name] for name in inputs if name in target.context}
        places = {name: place for place, name in enumerate(wanted)}
        parts = []
        for label, group, columns, names, derived in self._parts:
            read = {name: named for name, named in names.items() if named in needed}
            if read:
                ordered = dict(sorted(read.items(), key=lambda item: places.get(item[1], len(places))))
                parts.append(PreparedPart(label, group, columns, ordered, derived, on_bound))
        return Prepared(target, wanted, parts, self._derived if own else None, own, context)

    def _group_by(self, group: ServedGroup) -> Target:
        plan = group.plan
        keys = {field.name: field.type for field in plan.group_by.keys}
        types, derived = _with_derivations(plan)
        self._parts.append((plan.name, group, tuple(keys), {name: name for name in types}, derived))
        return Target(plan.name, "group_by", plan.definition_hash, keys, {}, types, (plan.name,))

    def _join(self, join: Join, groups: Mapping[str, ServedGroup]) -> Target:
        keys = {field.name: field.type for field in join.keys}
        context = {field.name: field.type for field in join.context}
        features: dict[str, str] = {}
        names_of_groups = [part.group_by.name for part in join.parts]
        marks = [repr((join.name, join.parts, join.derivations, join.context))]
        for part in join.parts:
            group = groups[part.group_by.name]
            types, derived = _with_derivations(group.plan)
            names = {name: part.renamed(name) for name in types}
            features |= {names[name]: type_ for name, type_ in types.items()}
            label = group.name
            if names_of_groups.count(label) > 1 and part.prefix:
                label = part.prefix
            self._parts.append((label, group, tuple(column for column, _ in part.columns), names, derived))
            marks.append(group.plan.definition_hash)
        if join.derivations:
            self._derived = CompiledDerivations(join.derivations, keys | context | features)
            features |= self._derived.result_types
        digest = hashlib.sha256("\n".join(marks).encode()).hexdigest()[:16]
        parts = tuple(dict.fromkeys(names_of_groups))
        return Target(join.name, "join", digest, keys, context, features, parts)


def _depth(type_: DataType) -> int:
    return 0 if type_.element is None else 1 + _depth(type_.element)


def feature_types(plan: GroupByPlan) -> dict[str, str]:
    """Return the type of each feature of a plan, without derivations."""
    if plan.group_by.aggregations:
        return {feature.name: feature.type for feature in plan.cells.features}
    return {field.name: field.type for field in plan.group_by.inputs}


def _with_derivations(plan: GroupByPlan) -> tuple[dict[str, str], CompiledDerivations | None]:
    types = feature_types(plan)
    if not plan.group_by.derivations:
        return types, None
    keys = {field.name: field.type for field in plan.group_by.keys}
    derived = CompiledDerivations(plan.group_by.derivations, keys | types)
    return types | derived.result_types, derived
