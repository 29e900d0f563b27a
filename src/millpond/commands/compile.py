"""`millpond compile`: shows what definitions compile to and, with a store, what a change of them costs."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from millpond.commands.definitions import load_definitions
from millpond.commands.options import definitions_argument, json_option, tell
from millpond.features import (
    SERVING_INFO_DATASET,
    Field,
    GroupByPlan,
    Join,
    ServingInfo,
    compile_group_by,
    serving_info_key,
)
from millpond.features.stored_sizes import stored_sizes
from millpond.kv import Get, KVStore, open_store


@click.command("compile")
@definitions_argument
@click.option(
    "--store", "store_url", metavar="URL", help="Also show what changed since the upload that this store serves."
)
@json_option
def compile(*, definitions: tuple[str, ...], store_url: str | None, as_json: bool) -> None:  # noqa: A001 - the command's name
    """Show hops, cells, layers and bytes per key of every GroupBy in DEFINITIONS, and which cells support deletes.

    Of every Join it shows keys, context and features.

    With --store it also says what it takes to serve this definition instead of the served one.
    """
    found = load_definitions(definitions)
    plans = [compile_group_by(group_by) for group_by in found.group_bys]
    costs: dict[str, str] = {}
    if store_url is not None:
        with open_store(store_url) as store:
            costs = {plan.name: cost_of_change(plan, _served(store, plan.name)) for plan in plans}
    described = [_described(plan, costs.get(plan.name)) for plan in plans] + [_join(join) for join in found.joins]
    texts = [_text(plan, costs.get(plan.name)) for plan in plans] + [_join_text(join) for join in found.joins]
    tell(described, as_json=as_json, text="\n\n".join(texts))


def cost_of_change(plan: GroupByPlan, served: ServingInfo | None) -> str:
    """Say what it takes to serve a plan, given the upload of the same name that is served, if any.

    A snapshot is only uploaded: it has no stream.

    >>> from millpond.features import Aggregation, Field, GroupBy
    >>> plan = compile_group_by(GroupBy("g", (Field("k", "string"),), (), (Aggregation("count"),)))
    >>> cost_of_change(plan, None)
    'nothing is served yet: an upload and a stream'
    """
    streamed = plan.group_by.accuracy == "temporal"
    if served is None:
        return f"nothing is served yet: an upload{' and a stream' if streamed else ''}"
    if served.generation != plan.generation:
        former = served.generation or "format 1"
        steps = "start a stream of it, then upload" if streamed else "an upload"
        return f"a new generation, {plan.generation} after {former}: {steps}; the former one is served until then"
    if served.batch_form != plan.batch_form:
        return f"an upload{'; the stream goes on (restart it if cells were added)' if streamed else ''}"
    if served.definition_hash != plan.definition_hash:
        return "nothing stored changes: restart the fetchers"
    return "nothing: this definition is served"


def _served(store: KVStore, name: str) -> ServingInfo | None:
    (rows,) = store.get_many([Get(SERVING_INFO_DATASET, serving_info_key(name))])
    return ServingInfo.decode(rows[-1].value) if rows else None


def _text(plan: GroupByPlan, cost: str | None) -> str:
    sizes = stored_sizes(plan)
    lines = [
        plan.explain(),
        (
            f"  bytes of a key: {sizes.tile} a tile of one event, {sizes.batch_row} a batch row of one event, "
            f"{sizes.full_batch_row} with one event in each of {sizes.segments} segments"
        ),
    ]
    derived = [derivation.name for derivation in plan.group_by.derivations]
    lines += [f"  derived: {', '.join(derived)}"] if derived else []
    lines += [f"  cost of this definition: {cost}"] if cost is not None else []
    return "\n".join(lines)


def _join_text(join: Join) -> str:
    lines = [f"Join {join.name}", f"  keys: {_typed(join.keys)}"]
    lines += [f"  context: {_typed(join.context)}"] if join.context else []
    return "\n".join([*lines, f"  features: {', '.join(_names(join))}"])


def _names(join: Join) -> list[str]:
    return [*join.feature_names, *(derivation.name for derivation in join.derivations)]


def _typed(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)


def _join(join: Join) -> dict[str, Any]:
    return {
        "name": join.name,
        "keys": {field.name: field.type for field in join.keys},
        "context": {field.name: field.type for field in join.context},
        "features": [{"name": name} for name in _names(join)],
    }


def _described(plan: GroupByPlan, cost: str | None) -> dict[str, Any]:
    return {
        "name": plan.name,
        "definition_hash": plan.definition_hash,
        "generation": plan.generation,
        "batch_form": plan.batch_form,
        "layers_ms": plan.layers,
        "cells": [
            {"id": cell.id, "suffix": cell.suffix, "deletes": cell.delete is not None} for cell in plan.cells.cells
        ],
        "features": [
            {"name": feature.name, "type": feature.type, "deletes": feature.deletes, "exact": feature.exact}
            for feature in plan.cells.features
        ],
        "bytes": msgspec.to_builtins(stored_sizes(plan)),
        "cost": cost,
    }
