"""The three hashes of a plan: what of a definition its answers, its tiles and its batch rows depend on.

They say what a change of the definition costs: nothing stored changes with the *definition hash* alone, an upload is
needed if the *batch form* changes, and a new stream if the *generation* does.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millpond.features.definitions import GroupBy
from millpond.features.key_codec import KEY_FORMAT_VERSION
from millpond.features.types import DataType
from millpond.features.value_codec import VALUE_FORMAT_VERSION


def definition_hash(group_by: GroupBy) -> str:
    """Give 16 hexadecimal digits that change with what the answers depend on."""
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
    """Give 8 hexadecimal digits that change with what a tile's bytes mean beside its cells, which it names itself."""
    return _digest(_stored(group_by, layers))[:8]


def batch_form_of(
    group_by: GroupBy,
    layers: Sequence[int],
    windows_ms: Sequence[int | None],
    cells: Sequence[str],
    types: Sequence[DataType],
) -> str:
    """Give 16 hexadecimal digits that change with what a batch row's bytes mean.

    Args:
        group_by: the definition.
        layers: the sizes of its tiles.
        windows_ms: the lengths of its windows.
        cells: the ids of its cells.
        types: of its values, which a snapshot stores.
    """
    form = {
        "accuracy": group_by.accuracy,
        "cells": list(cells),
        "windows": list(windows_ms),
        "values": [type_.name for type_ in types] if group_by.accuracy == "snapshot" else [],
    }
    return _digest(_stored(group_by, layers) | form)[:16]


def _stored(group_by: GroupBy, layers: Sequence[int]) -> dict[str, Any]:
    return {
        "formats": [KEY_FORMAT_VERSION, VALUE_FORMAT_VERSION],
        "keys": [asdict(field) for field in group_by.keys],
        "layers": list(layers),
    }


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
