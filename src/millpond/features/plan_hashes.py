"""The three hashes of a plan: over what its answers, its tiles and its batch rows depend on.

They say what a change of the definition costs. If only the *definition hash* changes, nothing stored changes. If the
*batch form* changes, an upload is needed. If the *generation* changes, a new stream is needed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millpond.features.definitions import GroupBy
from millpond.features.row_rules import input_name, row_rules
from millpond.features.stored.key_codec import KEY_FORMAT_VERSION
from millpond.features.stored.value_codec import VALUE_FORMAT_VERSION
from millpond.features.types import DataType


def definition_hash(group_by: GroupBy) -> str:
    """Return 16 hexadecimal digits that change with what the answers depend on."""
    return _digest(
        {
            "name": group_by.name,
            "keys": [asdict(field) for field in group_by.keys],
            "inputs": [asdict(field) for field in group_by.inputs],
            "aggregations": [asdict(aggregation) for aggregation in group_by.aggregations],
            "sources": [repr(source) for source in group_by.sources],
            "accuracy": group_by.accuracy,
            "tiled": group_by.tiled,
            "derivations": [repr(derivation) for derivation in group_by.derivations],
        }
    )[:16]


def generation_of(group_by: GroupBy, layers: Sequence[int]) -> str:
    """Return 8 hexadecimal digits that change with the meaning of a tile's bytes; a tile names its cells itself."""
    return _digest(_stored(group_by, layers))[:8]


def batch_form_of(
    group_by: GroupBy,
    layers: Sequence[int],
    windows_ms: Sequence[int | None],
    cells: Sequence[str],
    types: Sequence[DataType],
) -> str:
    """Return 16 hexadecimal digits that change with the meaning of a batch row's bytes.

    Args:
        group_by: the definition.
        layers: the sizes of its tiles.
        windows_ms: the lengths of its windows.
        cells: the ids of its cells.
        types: the types of its values, which a snapshot stores.
    """
    form = {
        "accuracy": group_by.accuracy,
        "cells": list(cells),
        "windows": list(windows_ms),
        "values": [type_.name for type_ in types] if group_by.accuracy == "snapshot" else [],
    }
    if not group_by.aggregations:
        # Its values are in no cell, whose id would name their expressions.
        named = [input_name(group_by, field.name) for field in group_by.inputs]
        form |= {"inputs": named} if named != [field.name for field in group_by.inputs] else {}
    return _digest(_stored(group_by, layers) | form)[:16]


def _stored(group_by: GroupBy, layers: Sequence[int]) -> dict[str, Any]:
    stored = {
        "formats": [KEY_FORMAT_VERSION, VALUE_FORMAT_VERSION],
        "keys": [asdict(field) for field in group_by.keys],
        "layers": list(layers),
    }
    rules = row_rules(group_by)
    return stored | {"rows": rules} if rules else stored


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
