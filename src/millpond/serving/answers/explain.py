"""Where the values of an answer come from.

Place on the data path: beside the answers, for requests that ask for it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from millpond.serving.answers.answer_values import bases_and_tails
from millpond.serving.answers.prepared import Prepared, PreparedPart
from millpond.serving.messages import FetchResponse
from millpond.serving.reads.fetch_rounds import WantedKey


def explained(
    answer: FetchResponse,
    prepared: Prepared,
    wanted: Sequence[WantedKey | None],
    query_ms: int,
) -> FetchResponse:
    """Return the answer with the origin of each value.

    Each value of a GroupBy has ``group_by``, ``batch_end_ms``, ``batch_landing_ms``, ``batch_row`` (``cache``,
    ``store``, or ``absent``), ``tiles`` (how many it holds), ``tiles_read`` (how many the store returned),
    ``tiles_from``, ``newest_event_before_ms`` (the end of the newest tile, which holds the newest event) and
    ``is_bound`` (whether the value is only a bound). ``unavailable`` says why a value is missing, and ``reason``
    what is wrong with one that is there. A derivation has ``derived_from``.
    """
    told: dict[str, Any] = {}
    ends = answer.batch_end_ms
    for part, key in zip(prepared.parts, wanted, strict=True):
        facts = _facts(part, key, ends.get(part.label) if isinstance(ends, dict) else ends, query_ms)
        bounds = _bounds(part, key, query_ms)
        for name, named in part.names.items():
            if part.derived is not None and name in part.derived.result_types:
                told[named] = {"derived_from": [part.names.get(it, it) for it in part.derived.inputs[name]]}
            else:
                told[named] = facts | {"is_bound": name in bounds}
            reason = answer.errors.get(part.label) or answer.errors.get(named)
            if reason is not None:
                told[named]["unavailable" if named not in answer.features else "reason"] = reason
    if prepared.derived is not None:
        for name in prepared.derived_names:
            told[name] = {"derived_from": list(prepared.derived.inputs[name])}
    return msgspec.structs.replace(answer, explain={name: told[name] for name in prepared.features if name in told})


def _facts(part: PreparedPart, wanted: WantedKey | None, batch_end_ms: int | None, query_ms: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"group_by": part.group.name, "batch_end_ms": batch_end_ms}
    data = None if wanted is None else wanted.data
    if data is None:
        return facts
    facts["batch_landing_ms"] = data.landed.info.batch_landing_ms
    if data.row is not None:
        absent = data.row.batch is None and data.row.values is None
        facts["batch_row"] = "absent" if absent else data.batch_from
    elif data.closed is not None and data.closed.view.reads_batch:
        facts["batch_row"] = data.batch_from
    tiles = [tile for tile in data.tiles if tile.start_ms < query_ms]
    closed = data.closed
    facts["tiles"] = len(tiles) + (0 if closed is None else closed.tiles)
    facts["tiles_read"] = data.stored_tiles
    facts["tiles_from"] = data.tiles_from
    newest = tiles[-1].end_ms if tiles else None if closed is None else closed.newest_ms
    facts["newest_event_before_ms"] = newest
    return facts


def _bounds(part: PreparedPart, wanted: WantedKey | None, query_ms: int) -> tuple[str, ...]:
    if wanted is None or wanted.data is None or part.finishers is None:
        return ()
    return part.finishers.limits_met(*bases_and_tails(part, wanted.data, query_ms))
