"""The rules by which the sources of a GroupBy make rows. A change of them changes what stored cells mean.

The names of tables and streams are no part of them: the same rows may lie under another name. There are two kinds of
rules, which cost different things when they change:

- which rows there are, with which keys and times: part of the generation;
- from which SQL expression an input comes: part of the ids of its cells, so that the cells of other inputs stay.

The rows of a Join are its features, so what computes them is a rule of the first kind.

Invariant: tables and streams whose columns are taken as they are, without conditions, add nothing to either.
"""

import hashlib
from dataclasses import asdict
from typing import Any

from millpond.features.definitions import EntitySource, EventSource, GroupBy, Join, JoinSource
from millpond.features.definitions.source import Source

_DIGITS = 8


def row_rules(group_by: GroupBy) -> list[dict[str, Any]]:
    """Return for each source its conditions, the expressions of keys and times, and its Join; empty if all are plain.

    >>> from millpond.features.definitions import Aggregation, Field
    >>> key, count = Field("k", "long"), Aggregation("count")
    >>> row_rules(GroupBy("g", (key,), (), (count,), sources=(EventSource("t"),)))
    []
    >>> row_rules(GroupBy("g", (key,), (), (count,), sources=(EventSource("t", wheres=("n > 0",)),)))
    [{'wheres': ['n > 0']}]
    """
    rules = [_rules(source, group_by) for source in group_by.sources]
    return sorted(rules, key=repr) if any(rules) else []


def input_name(group_by: GroupBy, column: str) -> str:
    """Return the name of an input in the ids of cells: with a digest of its SQL, unless it is a plain column.

    >>> from millpond.features.definitions import Aggregation, Field
    >>> for selects in ({}, {"k": "k", "n": "n"}, {"k": "k", "n": "2 * n"}):
    ...     source = EventSource("t", selects=selects)
    ...     total = Aggregation("sum", "n")
    ...     group_by = GroupBy("g", (Field("k", "long"),), (Field("n", "long"),), (total,), sources=(source,))
    ...     print(input_name(group_by, "n"))
    n
    n
    n#3133fce2
    """
    expressions = {_expression(source, column) for source in group_by.sources}
    if expressions <= {column}:
        return column
    return f"{column}#{hashlib.sha256(repr(sorted(expressions)).encode()).hexdigest()[:_DIGITS]}"


def _rules(source: Source, group_by: GroupBy) -> dict[str, Any]:
    times: dict[str, str] = {}
    if isinstance(source, EventSource | EntitySource):
        times["time_ms"] = source.time_column
    if isinstance(source, EntitySource):
        times |= {"mutation_time": source.mutation_time_column, "is_before": source.is_before_column}
    found = {
        "wheres": sorted(where.strip() for where in source.wheres),
        "keys": _not_plain({field.name: _expression(source, field.name) for field in group_by.keys}),
        "times": _not_plain({default: _expression(source, column) for default, column in times.items()}),
        "join": _computed(source.join) if isinstance(source, JoinSource) else None,
    }
    return {name: part for name, part in found.items() if part}


def _computed(join: Join) -> dict[str, Any]:
    """Return what computes the rows of a Join."""
    left = join.left
    return {
        "left": None
        if left is None
        else [sorted(where.strip() for where in left.wheres), sorted(dict(left.selects).items()), left.time_column],
        "parts": [
            {
                "keys": [[asdict(field) for field in part.group_by.keys], part.columns],
                "inputs": [[asdict(field), input_name(part.group_by, field.name)] for field in part.group_by.inputs],
                "aggregations": [asdict(aggregation) for aggregation in part.group_by.aggregations],
                "accuracy": part.group_by.accuracy,
                "derivations": [repr(derivation) for derivation in part.group_by.derivations],
                "rows": row_rules(part.group_by),
                "features": part.feature_names,
            }
            for part in join.parts
        ],
        "derivations": [repr(derivation) for derivation in join.derivations],
    }


def _not_plain(expressions: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in expressions.items() if text != name}


def _expression(source: Source, column: str) -> str:
    return dict(source.selects).get(column, column).strip()
