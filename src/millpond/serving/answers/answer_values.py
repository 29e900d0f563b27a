"""Makes answers from what was read: values, their states, and why a value is unavailable.

Place on the data path: the last step of a fetch. Invariant: an answer has a value only if it equals what
the plan's `finish` returns for the stored rows. If something prevents that, `errors` says what.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from millpond.features import HORIZON_MS
from millpond.features.answering import Finisher
from millpond.serving.answers.prepared import Prepared, PreparedPart
from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.caches.closed_tiles import has_unknown, tail_irs
from millpond.serving.messages import FetchResponse, ValueState
from millpond.serving.reads.fetch_rounds import WantedKey
from millpond.serving.reads.key_read import KeyData
from millpond.serving.reads.short_read import ShortResult

Stale = Literal["refuse", "serve-and-flag"]
"""What to do with a feature if the batch is too old to answer its window exactly: leave it out, or return it and say so
in `errors`."""

_HOUR_MS = 3_600_000


class PartAnswer:
    """The values of one part of one request."""

    __slots__ = ("batch_end_ms", "errors", "problem", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        self.problem: str | None = None
        self.batch_end_ms: int | None = None


def part_answer(part: PreparedPart, wanted: WantedKey | None, query_ms: int, stale: Stale) -> PartAnswer:
    """Return the values of one part; `wanted` is None for a key with a None in it."""
    answer = PartAnswer()
    landed = part.group.served.landed
    if wanted is None:
        answer.values = dict.fromkeys(part.features)
        answer.batch_end_ms = None if landed is None else landed.batch_end_ms
        return answer
    data, short = wanted.data, wanted.short
    if data is not None:
        landed = data.landed
    elif short is not None:
        landed = short.landed
    answer.batch_end_ms = None if landed is None else landed.batch_end_ms
    if wanted.problem is not None:
        answer.problem = wanted.problem
    elif landed is None:
        answer.problem = part.group.served.problem or f"GroupBy {part.group.name!r}: no batch is served."
    elif query_ms < landed.batch_end_ms:
        is_in_seconds = landed.batch_end_ms <= query_ms * 1000 < 2 * landed.batch_end_ms
        mend = "This looks like seconds: multiply it by 1000." if is_in_seconds else "Ask for a time at or after it."
        answer.problem = (
            f"GroupBy {part.group.name!r}: at={query_ms} is before the batch end {landed.batch_end_ms}, and a batch "
            f"cannot take events back. {mend}"
        )
    elif short is not None and part.finishers is not None:
        answer.values = part.finishers.compiled(short.bases, short.tails)
    elif data is None:
        answer.problem = f"GroupBy {part.group.name!r}: its batch was replaced during the fetch. Try again."
    elif part.layout is None:
        answer.values = _stored_values(part, data.row)
    else:
        _finish(part, data, query_ms, stale, answer)
    return answer


def bases_and_tails(part: PreparedPart, data: KeyData, query_ms: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return for each window of a part its closed part and its open tail, for a query."""
    layout = part.layout
    if layout is None:
        return (), ()
    closed, tiles = data.closed, data.tiles
    if tiles and tiles[-1].start_ms >= query_ms:
        tiles = [tile for tile in tiles if tile.start_ms < query_ms]
    empty = layout.plan.new_ir()
    if closed is not None:
        return closed.bases, tail_irs(layout, closed.view, tiles, closed.end_ms, empty)
    view = data.landed.view(layout, query_ms)
    bases = layout.empties if data.row is None else data.row.bases(layout, view)
    if data.after_ms > view.read_start_ms and tiles and tiles[0].start_ms < data.after_ms:
        raise AssertionError("tiles begin behind what is kept")
    return bases, tail_irs(layout, view, tiles, data.landed.batch_end_ms, empty)


def _finish(part: PreparedPart, data: KeyData, query_ms: int, stale: Stale, answer: PartAnswer) -> None:
    finishers = part.finishers
    if finishers is None:
        return
    bases, tails = bases_and_tails(part, data, query_ms)
    closed = data.closed
    is_partial = has_unknown(tails) if closed is None else closed.is_partial or has_unknown(tails)
    if is_partial:
        answer.values = finishers.careful(bases, tails)
        for name in part.features:
            if name not in answer.values:
                answer.errors[name] = (
                    f"GroupBy {part.group.name!r}: {name} needs cells that tiles of the stream do not have yet; it is "
                    "known once its window has passed them, or a batch covers them."
                )
    else:
        answer.values = finishers.compiled(bases, tails)
    landed = data.landed
    if query_ms > landed.horizon_end_ms:
        for name in landed.plan.stale_features(query_ms, landed.batch_end_ms):
            if name in answer.values:
                if stale == "refuse":
                    del answer.values[name]
                hours = (query_ms - landed.batch_end_ms) // _HOUR_MS
                answer.errors[name] = (
                    f"GroupBy {part.group.name!r}: the batch ends {hours} hours before at={query_ms} and answers all "
                    f"windows for {HORIZON_MS // _HOUR_MS}, so {name} is stale. Upload a newer batch."
                )


def response(
    prepared: Prepared,
    keys: Mapping[str, Any],
    query_ms: int,
    wanted: Sequence[WantedKey | None],
    stale: Stale,
    context: Mapping[str, Any],
) -> FetchResponse:
    """Assemble one answer.

    Args:
        prepared: the target and the features wanted of it.
        keys: the keys as in the request.
        query_ms: the time of the query.
        wanted: what was read for each part; None where a part of the key is None.
        stale: what to do with features that the batch is too old for.
        context: the checked fields that derivations read.
    """
    if prepared.single is not None and prepared.single.finish is not None:
        one = wanted[0]
        if one is not None and one.short is not None:
            return _of_one_part(prepared, prepared.single.finish, keys, query_ms, one.short)
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    ends: list[int | None] = []
    for part, one in zip(prepared.parts, wanted, strict=True):
        short = None if one is None else one.short
        if short is not None and part.finish is not None:
            found = part.finish(short.bases, short.tails)
            if values:
                values.update(found)
            else:
                values = found
            ends.append(short.landed.batch_end_ms)
        else:
            answer = part_answer(part, one, query_ms, stale)
            ends.append(answer.batch_end_ms)
            _add_part(part, answer, keys, values, errors)
    if prepared.derived is not None:
        _derive_join(prepared, values, errors, keys, context)
    features = values
    if not prepared.is_in_order or len(values) != len(prepared.features):
        features = {name: values[name] for name in prepared.features if name in values}
    states: dict[str, ValueState] = {}
    if len(features) < len(prepared.features) or None in features.values():
        for name in prepared.features:
            if name not in features:
                states[name] = "unavailable"
            elif features[name] is None:
                states[name] = "null"
    batch_end_ms = ends[0] if prepared.single is not None else dict(zip(prepared.labels, ends, strict=True))
    return FetchResponse(prepared.target.name, keys, query_ms, features, states, errors, batch_end_ms)


def _of_one_part(
    prepared: Prepared, finish: Finisher, keys: Mapping[str, Any], query_ms: int, short: ShortResult
) -> FetchResponse:
    """Answer for a GroupBy without derivations if every cell is known."""
    features = finish(short.bases, short.tails)
    states: dict[str, ValueState] = {}
    if None in features.values():
        states = {name: "null" for name, value in features.items() if value is None}
    return FetchResponse(prepared.target.name, keys, query_ms, features, states, {}, short.landed.batch_end_ms)


def _add_part(
    part: PreparedPart, answer: PartAnswer, keys: Mapping[str, Any], values: dict[str, Any], errors: dict[str, str]
) -> None:
    """Add the values and errors of one part to an answer, under the answer's names."""
    if answer.problem is not None:
        errors[part.label] = answer.problem
        return
    found = answer.values
    if part.derived is not None:
        _derive(
            part,
            found,
            answer,
            dict(zip((f.name for f in part.group.plan.group_by.keys), map(keys.get, part.columns), strict=True)),
        )
    for name, reason in answer.errors.items():
        if name in part.names:
            errors[part.names[name]] = reason
    for name, named in part.names.items():
        if name in found:
            values[named] = found[name]


def _derive(part: PreparedPart, values: dict[str, Any], answer: PartAnswer, keys: Mapping[str, Any]) -> None:
    """Add the wanted derivations of a GroupBy."""
    derived = part.derived
    if derived is None:
        return
    found, reasons = derived.apply(values | dict(keys))
    for name in part.names:
        if name in derived.result_types:
            missing = [column for column in derived.inputs[name] if column not in values and column not in keys]
            if missing:
                answer.errors[name] = f"it is derived from {', '.join(missing)}, which is unavailable"
            else:
                values[name] = found[name]
                if name in reasons:
                    answer.errors[name] = reasons[name]


def _derive_join(
    prepared: Prepared,
    values: dict[str, Any],
    errors: dict[str, str],
    keys: Mapping[str, Any],
    context: Mapping[str, Any],
) -> None:
    """Add the wanted derivations of a Join."""
    derived = prepared.derived
    if derived is None:
        return
    given = {name: keys.get(name) for name in prepared.known_columns} | dict(context)
    found, reasons = derived.apply(values | given)
    for name in prepared.derived_names:
        missing = [column for column in derived.inputs[name] if column not in values and column not in given]
        if missing:
            errors[name] = f"it is derived from {', '.join(missing)}, which is unavailable"
        else:
            values[name] = found[name]
            if name in reasons:
                errors[name] = reasons[name]


def _stored_values(part: PreparedPart, row: BatchRow | None) -> dict[str, Any]:
    """Read the finished values of a row; lists and maps are copied, so that callers may change theirs."""
    if row is None or row.values is None:
        return dict.fromkeys(part.features)
    stored = row.values
    values = {name: stored[place] for name, place in part.values_at}
    for name, depth in part.copied:
        values[name] = _copied(values[name], depth)
    return values


def _copied(value: Any, depth: int) -> Any:
    """Copy a list or map whose elements are lists or maps in turn, `depth` in all."""
    if value is None:
        return None
    if depth == 1:
        return list(value) if isinstance(value, list) else dict(value)
    if isinstance(value, list):
        return [_copied(element, depth - 1) for element in value]
    return {name: _copied(element, depth - 1) for name, element in value.items()}
