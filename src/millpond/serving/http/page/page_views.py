"""The GroupBys and Joins of a fetcher as the page shows them: definition, plan, freshness, sizes.

Place on the data path: beside it. Nothing is read from the store: the page shows what the fetcher knows without
waiting. One answer has at most `SHOWN` targets; a filter finds the others.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from millpond.features import GroupBy, GroupByPlan, Join, compile_group_by
from millpond.features.stored_sizes import stored_sizes
from millpond.serving.http.served import Served
from millpond.serving.messages import Target
from millpond.ui.views import Features, PartFreshness, TargetRow, TargetView

SHOWN = 100
"""How many GroupBys and Joins one answer has at most."""

_NO_BATCH = "No batch of {} is served. Run its upload; /ready says more."
_AGES = ("batch_end_age_ms", "landing_age_ms", "closing_age_ms")


def features_view(fetcher: Served, search: str = "", name: str | None = None) -> Features:
    """Return the targets whose name contains `search`, or all about the one named `name`; empty if there is none."""
    if name is not None:
        target = fetcher.targets.get(name)
        return Features() if target is None else Features(target=_target_view(fetcher, target))
    found = sorted(each for each in fetcher.targets if search.lower() in each.lower())
    ages = _ages(fetcher)
    rows = [_row(fetcher, fetcher.targets[each], ages) for each in found[:SHOWN]]
    return Features(rows, len(found))


def _ages(fetcher: Served) -> Mapping[str, Mapping[str, Any]]:
    """Return the freshness of each GroupBy, from the statistics."""
    ages: Mapping[str, Mapping[str, Any]] = msgspec.to_builtins(fetcher.stats()).get("freshness", {})
    return ages


def _row(fetcher: Served, target: Target, ages: Mapping[str, Mapping[str, Any]]) -> TargetRow:
    parts = [ages.get(part, {}) for part in target.parts]
    greatest = {age: max((part[age] for part in parts if part.get(age) is not None), default=None) for age in _AGES}
    return TargetRow(
        name=target.name,
        kind=target.kind,
        keys=list(target.keys),
        features=len(target.features),
        problem=_problem(fetcher, target),
        is_late=any(part.get("is_late", False) for part in parts),
        **greatest,
    )


def _problem(fetcher: Served, target: Target) -> str | None:
    infos = fetcher.serving_infos()
    missing = [part for part in target.parts if infos.get(part) is None]
    return _NO_BATCH.format(", ".join(missing)) if missing else None


def _target_view(fetcher: Served, target: Target) -> TargetView:
    definition = fetcher.definitions[target.name]
    group_bys = [definition] if isinstance(definition, GroupBy) else [part.group_by for part in definition.parts]
    plans = [compile_group_by(group_by) for group_by in dict.fromkeys(group_bys)]
    ages = _ages(fetcher)
    return TargetView(
        name=target.name,
        kind=target.kind,
        problem=_problem(fetcher, target),
        definition=[*_described(definition), ("Definition hash", target.definition_hash)],
        feature_types=list(target.features.items()),
        key_types=target.keys,
        context_types=target.context,
        plans=[(plan.name, plan.explain()) for plan in plans],
        sizes=[_sizes(plan) for plan in plans],
        freshness=[_freshness(fetcher, part, ages.get(part, {})) for part in target.parts],
    )


def _sizes(plan: GroupByPlan) -> tuple[str, int, int, int]:
    sizes = stored_sizes(plan)
    return plan.name, sizes.tile, sizes.batch_row, sizes.full_batch_row


def _freshness(fetcher: Served, part: str, ages: Mapping[str, Any]) -> PartFreshness:
    info = fetcher.serving_infos().get(part)
    return PartFreshness(
        group_by=part,
        batch_end_ms=None if info is None else info.batch_end_ms,
        batch_landing_ms=None if info is None else info.batch_landing_ms,
        is_late=ages.get("is_late", False),
        **{age: ages.get(age) for age in _AGES},
    )


def _described(definition: GroupBy | Join) -> list[tuple[str, str]]:
    if isinstance(definition, Join):
        parts = [
            f"{part.group_by.name} ({', '.join(f'{key} from {column}' for column, key in part.columns)})"
            for part in definition.parts
        ]
        context = [f"{field.name} {field.type}" for field in definition.context]
        told = [("Parts", "; ".join(parts)), ("Context", ", ".join(context))]
    else:
        aggregations = [
            f"{each.operation}({each.column or '*'}) over {', '.join(window or 'all time' for window in each.windows)}"
            for each in definition.aggregations
        ]
        sources = [type(source).__name__ + f" {_table(source)}" for source in definition.sources]
        told = [
            ("Keys", ", ".join(f"{field.name} {field.type}" for field in definition.keys)),
            ("Inputs", ", ".join(f"{field.name} {field.type}" for field in definition.inputs)),
            ("Aggregations", "; ".join(aggregations) or "none: the latest row as it is"),
            ("Sources", ", ".join(sources) or "given as tables"),
            ("Accuracy", definition.accuracy),
            ("Stream", "keeps tiles" if definition.tiled else "keeps a row for each event"),
            ("Batch stays for", definition.batch_ttl or "ever"),
        ]
    derivations = [f"{each.name} = {each.expression}" for each in definition.derivations]
    told += [("Derivations", "; ".join(derivations)), ("Tags", ", ".join("=".join(tag) for tag in definition.tags))]
    return [(term, text) for term, text in told if text]


def _table(source: Any) -> str:
    join = getattr(source, "join", None)
    return str(join.name if join is not None else getattr(source, "table", getattr(source, "snapshots", "")))
