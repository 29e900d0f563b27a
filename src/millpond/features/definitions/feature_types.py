"""The types of a definition's features, known from the definition alone.

A feature's type follows from its operation, the type of its column and its shape. So a derivation over features is
checked where it is written, before anything is computed.
"""

from typing import TYPE_CHECKING

from millpond.errors import OptionError
from millpond.features.derivations.compiled import CompiledDerivations, derivation_faults
from millpond.features.operations import OPERATIONS, check_input
from millpond.features.types import DataType, parse_type

if TYPE_CHECKING:
    from millpond.features.definitions.aggregation import Aggregation
    from millpond.features.definitions.field import Field
    from millpond.features.definitions.group_by import GroupBy
    from millpond.features.definitions.join import Join


def feature_type(aggregation: "Aggregation", type_: DataType | None, bucket: str | None) -> str:
    """Return the type of a feature, as text.

    Args:
        aggregation: the aggregation of the feature.
        type_: the type of its column; None if it counts events.
        bucket: the column of its buckets; None if it has none.

    >>> from millpond.features.definitions import Aggregation
    >>> feature_type(Aggregation("sum", "price", buckets=("shop",)), parse_type("array<int>"), "shop")
    'map<string,long>'
    """
    operation = OPERATIONS[aggregation.operation]
    parameter = None if operation.parameter is None else getattr(aggregation, operation.parameter)
    result = "long" if type_ is None else operation.result(type_.scalar, parameter).name
    if type_ is not None and type_.key is not None:
        result = f"map<{type_.key.name},{result}>"
    elif aggregation.element_wise:
        result = f"array<{result}>"
    return result if bucket is None else f"map<string,{result}>"


def feature_types(group_by: "GroupBy") -> dict[str, str]:
    """Return the type of each feature of a GroupBy, in declared order, as text; without derivations."""
    fields = {field.name: parse_type(field.type) for field in group_by.inputs}
    if not group_by.aggregations:
        return {name: type_.name for name, type_ in fields.items()}
    return {
        name: feature_type(aggregation, None if aggregation.column is None else fields[aggregation.column], bucket)
        for aggregation in group_by.aggregations
        for name, _, bucket in aggregation.features
    }


def served_types(group_by: "GroupBy") -> dict[str, str]:
    """Return the type of each feature of a GroupBy, then of each of its derivations."""
    types = feature_types(group_by)
    if not group_by.derivations:
        return types
    return types | CompiledDerivations(group_by.derivations, _keys(group_by) | types).result_types


def derivation_columns(join: "Join") -> dict[str, str]:
    """Return the columns that a Join's derivations may use, with their types: keys, context fields and features."""
    columns = {field.name: field.type for field in (*join.keys, *join.context)}
    for part in join.parts:
        columns |= {part.renamed(name): type_ for name, type_ in served_types(part.group_by).items()}
    return columns


def group_by_derivation_faults(group_by: "GroupBy") -> list[str]:
    """Return what is wrong with the derivations of a GroupBy; other parts of it may be wrong too.

    A derivation that uses a feature without a known type is not checked.
    """
    if not group_by.derivations:
        return []
    fields = {field.name: field for field in group_by.inputs}
    columns = _keys(group_by)
    untyped = set()
    if not group_by.aggregations:
        columns |= {name: field.type for name, field in fields.items()}
    for aggregation in group_by.aggregations:
        type_ = None
        if aggregation.column is not None:
            field = fields.get(aggregation.column)
            if field is None or not _fits(aggregation, field):
                untyped |= set(aggregation.feature_names)
                continue
            type_ = field.parsed
        columns |= {name: feature_type(aggregation, type_, bucket) for name, _, bucket in aggregation.features}
    return derivation_faults(group_by.derivations, columns, untyped)


def join_derivation_faults(join: "Join") -> list[str]:
    """Return what is wrong with the derivations of a Join."""
    return derivation_faults(join.derivations, derivation_columns(join)) if join.derivations else []


def _fits(aggregation: "Aggregation", field: "Field") -> bool:
    try:
        check_input(aggregation, field)
    except OptionError:
        return False
    return True


def _keys(group_by: "GroupBy") -> dict[str, str]:
    return {field.name: field.type for field in group_by.keys}
