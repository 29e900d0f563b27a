"""A named set of features over the rows of one key."""

import re
from dataclasses import dataclass
from typing import Literal

from millpond.errors import OptionError
from millpond.features.definitions.aggregation import Aggregation
from millpond.features.definitions.faults import Faults, frozen_texts, listed
from millpond.features.definitions.feature_types import group_by_derivation_faults
from millpond.features.definitions.field import Field
from millpond.features.definitions.source import EntitySource, EventSource, JoinSource, Source, Texts
from millpond.features.derivations.definition import Derivation
from millpond.features.operations import check_input
from millpond.features.types import parse_type
from millpond.features.windows import DAY_MS, parse_window
from millpond.suggestions import hint

Accuracy = Literal["temporal", "snapshot"]
"""``temporal``: up to the query. ``snapshot``: up to the batch end."""

CacheSize = int | str
"""A number of entries (``10_000``), or bytes as a text (``"50MB"``)."""

_SIZE = re.compile(r"\d+\s*(?:([KMG]I?)?B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GroupBy:
    """A named set of features over the rows of one key.

    Args:
        name: the name, also in its datasets' names; letters, digits, ``_`` and ``-``.
        keys: the columns that together identify whose features these are, in the order of the key. A row
            with a null in one of them belongs to no key.
        inputs: the columns that are aggregated. The event time is not among them: it is given
            beside the inputs, in milliseconds since the epoch, UTC.
        aggregations: what is computed, in the order of the features. Without any, the features are the
            inputs of the latest row, as they are.
        sources: where the rows come from; not needed where DataFrames are passed.
        accuracy: ``temporal`` features follow events up to the query; ``snapshot`` features are as of
            the batch end, with windows of whole days.
        tiled: whether the stream keeps tiles. Untiled, it keeps a row for each event: for keys with few
            events, and for exact queries about the past.
        derivations: features computed from features, in SQL.
        enable_fetcher_caching: whether a fetcher caches this GroupBy; each cache gets 50 MB unless sized.
        fetcher_cache_size: the fetcher's cache of batch rows, as ``"100MB"`` or ``10_000`` entries.
        fetcher_tile_cache_size: the fetcher's cache of tiles, likewise.
        batch_ttl: how long a batch stays in the store after it was uploaded, such as ``"7d"``; forever
            if None.
        tags: texts for people and tools; they change nothing that is computed.

    Raises:
        OptionError: a part is missing, appears twice, or does not fit another, or a derivation is not valid. The
            error names all faults.
        MissingDependencyError: it has derivations, and sqlglot is not installed.

    >>> route = GroupBy(
    ...     "route",
    ...     keys=(Field("origin", "string"),),
    ...     inputs=(Field("dep_delay", "double"),),
    ...     aggregations=(Aggregation("count", windows=("1h",)), Aggregation("max", "dep_delay")),
    ... )
    >>> route.feature_names
    ('count_1h', 'dep_delay_max')
    """

    name: str
    keys: tuple[Field, ...]
    inputs: tuple[Field, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()
    sources: tuple[Source, ...] = ()
    accuracy: Accuracy = "temporal"
    tiled: bool = True
    derivations: tuple[Derivation, ...] = ()
    enable_fetcher_caching: bool = False
    fetcher_cache_size: CacheSize | None = None
    fetcher_tile_cache_size: CacheSize | None = None
    batch_ttl: str | None = None
    tags: Texts = ()

    def __post_init__(self) -> None:
        faults = Faults(f"GroupBy {self.name!r}")
        faults.name(self.name)
        for part, kind in (
            ("keys", Field),
            ("inputs", Field),
            ("aggregations", Aggregation),
            ("sources", (EventSource, EntitySource, JoinSource)),
        ):
            object.__setattr__(self, part, faults.parts(part, getattr(self, part), kind))
        object.__setattr__(self, "derivations", faults.parts("derivations", self.derivations, Derivation))
        object.__setattr__(self, "tags", frozen_texts(faults, "tags", self.tags))
        if not self.keys:
            faults.add("it has no keys; declare at least one")
        for key in self.keys:
            if parse_type(key.type).element is not None:
                faults.add(f"key {key.name!r} is of type {key.type}; a key's parts are scalars")
        faults.doubles("key", [field.name for field in self.keys])
        faults.doubles("input", [field.name for field in self.inputs])
        for aggregation in self.aggregations:
            self._check_columns(faults, aggregation)
        faults.doubles("feature", self.feature_names)
        self._check_accuracy(faults)
        self._check_options(faults)
        for fault in group_by_derivation_faults(self):
            faults.add(fault)
        faults.report()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of all features but derivations, in declared order."""
        if not self.aggregations:
            return tuple(field.name for field in self.inputs)
        return tuple(name for aggregation in self.aggregations for name in aggregation.feature_names)

    def _check_columns(self, faults: Faults, aggregation: Aggregation) -> None:
        fields = {field.name: field for field in self.inputs}
        if aggregation.column is not None:
            if aggregation.column not in fields:
                faults.add(
                    f"aggregation {aggregation.operation!r} asks for column {aggregation.column!r}, which is not "
                    f"among its inputs; {hint(aggregation.column, fields)}"
                )
            else:
                try:
                    check_input(aggregation, fields[aggregation.column])
                except OptionError as error:
                    faults.add(str(error))
        for bucket in aggregation.buckets:
            if bucket not in fields:
                faults.add(f"bucket {bucket!r} is not among its inputs; {hint(bucket, fields)}")
            elif fields[bucket].type != "string":
                faults.add(f"bucket {bucket!r} must be of type string, its type is {fields[bucket].type!r}; cast it")

    def _check_accuracy(self, faults: Faults) -> None:
        if self.accuracy not in ("temporal", "snapshot"):
            faults.add(f"accuracy {self.accuracy!r} is none of {listed(('temporal', 'snapshot'))}")
        if not self.aggregations:
            if not self.inputs:
                faults.add("it has no aggregations and no inputs; declare what it computes, or its values")
            elif self.accuracy == "temporal":
                faults.add(
                    "it has no aggregations, so its values stand as of the batch end; "
                    'add aggregations, or say accuracy="snapshot"'
                )
        if self.accuracy == "snapshot":
            for aggregation in self.aggregations:
                for window in aggregation.windows:
                    if window is not None and parse_window(window) % DAY_MS:
                        faults.add(
                            f"window {window!r} of a snapshot is no whole number of days; "
                            f'write {max(1, round(parse_window(window) / DAY_MS))}d, or say accuracy="temporal"'
                        )

    def _check_options(self, faults: Faults) -> None:
        for option in ("fetcher_cache_size", "fetcher_tile_cache_size"):
            size = getattr(self, option)
            if size is not None and (isinstance(size, bool) or _SIZE.fullmatch(str(size).strip()) is None):
                faults.add(
                    f"{option} is {size!r}; give a number of entries (10000), bytes with a unit ('50MB', '64MiB'), "
                    "or 0 for no cache"
                )
        if self.batch_ttl is not None:
            try:
                parse_window(self.batch_ttl)
            except OptionError as error:
                faults.add(f"batch_ttl: {error}")
